"""What all commands that list rows do: read, sort, print in the wanted form, and go on with what changes (`-w`).

Several clusters are read in a thread each, and one that does not answer costs three seconds. What is bounded is the
wait for a cluster's first page, its login plugin included; a cluster that answers may take as long as its pages do. An
answer that comes too late is not waited for, and its thread ends with the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Event, Thread

import click
from nodedevices_common.backoff import Backoff
from nodedevices_common.errors import NodeDevicesError, OperationError
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.table import Column, Kind, Row, TableText, sort_rows
from nodedevices_common.text import nearest
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import documents, objects
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts

SECONDS = 3.0
OUTPUTS = ("table", "wide", "json", "yaml", "name")
_Node = tuple[str, list[Row]]  # its name and its rows


@dataclass(frozen=True, slots=True)
class Listing:
    output: str = "table"
    headers: bool = True
    sort_by: str = ""
    selector: str = ""
    watch: bool = False
    contexts: tuple[str, ...] = ()
    all_contexts: bool = False

    @property
    def several(self) -> bool:
        """Whether more than one cluster is meant."""
        return bool(self.contexts) or self.all_contexts


@dataclass(frozen=True, slots=True)
class Source:
    """What rows are made of: the NodeDevices of these nodes (none named: of all), each giving some rows."""

    kind: Kind
    rows: Callable[[Raw], Iterable[Row]]
    names: tuple[str, ...] = ()
    empty: str = ""  # what to say when there is no row

    def node(self, item: Raw) -> _Node:
        return facts.name_of(item), list(self.rows(item))


def show(session: Session, listing: Listing, source: Source) -> None:
    field = _sort_field(source.kind, listing.sort_by)
    if source.names and listing.selector:
        raise click.UsageError("give names, or a selector (-l), not both")
    if listing.several:
        _show_several(session, listing, source, field)
        return
    if source.names:
        names = tuple(dict.fromkeys(source.names))
        items = [session.node(name) for name in names]
        nodes = [source.node(item) for item in items]
        version = ""
        if listing.watch and len(names) > 1:
            raise click.UsageError("-w: give one name, or none to watch all")
        if listing.watch:
            version = text(mapping(items[0].get("metadata")).get("resourceVersion"))
    else:
        nodes, version = session.api.read_all(objects.NODE_DEVICES, source.node, selector=listing.selector)
    printer = _Printer(session, listing, source)
    printer.first(nodes, field)
    if listing.watch:
        _follow(session, listing, source, printer, version)


def _show_several(session: Session, listing: Listing, source: Source, field: str | None) -> None:
    """One table of all clusters; a row with the reason for each that does not answer, and an error at the end."""
    if listing.watch:
        raise click.UsageError("-w: only valid with one cluster; give --context")
    if session.context_name:
        raise click.UsageError("give --context, or several clusters, not both")
    contexts, words = session.contexts(listing.contexts)
    for line in words:
        session.say(line)
    answers = read_clusters(session, contexts, source.names, listing.selector)
    kind = replace(source.kind, columns=(Column("CLUSTER", "cluster"), *source.kind.columns))
    rows, without = [], []  # of devices, and of clusters that have nothing to show
    for answer in answers:
        if answer.problem or not answer.installed:
            fields = {"cluster": answer.context, kind.state: answer.state, "reason": answer.problem}
            without.append(Row(f"{answer.context}:", fields, key=answer.context))
        for item in answer.items:
            for row in source.rows(item):
                fields = {"cluster": answer.context, **row.fields}
                rows.append(Row(f"{answer.context}:{row.name}", fields, key=f"{answer.context}:{row.key}"))
    printer = _Printer(session, listing, replace(source, kind=kind))
    if not rows and not without:
        printer.say_empty()
    printer.print(sort_rows(rows, field) + ([] if listing.output == "name" else without))
    session.flush()
    if silent := [answer for answer in answers if answer.problem]:
        said = "; ".join(f"{answer.context}: {answer.problem}" for answer in silent)
        raise ClustersError(f"{len(silent)} of {len(answers)} clusters could not be read: {said}")


def print_rows(session: Session, listing: Listing, kind: Kind, rows: Sequence[Row]) -> None:
    """Rows that are known already, in the wanted form."""
    field = _sort_field(kind, listing.sort_by)
    _Printer(session, listing, Source(kind, lambda item: ())).print(sort_rows(rows, field))


def _sort_field(kind: Kind, given: str) -> str | None:
    if not given:
        return None
    field = kind.sort_field(given)
    if field is None:
        names = kind.sort_names()
        hint = nearest(given, names)
        raise click.UsageError(f"--sort-by {given}: no such column{hint or '; there are ' + ', '.join(names)}")
    return field


class _Printer:
    def __init__(self, session: Session, listing: Listing, source: Source) -> None:
        self._session, self._listing, self._source = session, listing, source
        self._columns = source.kind.shown(wide=listing.output == "wide")
        self._table = TableText(self._columns, colours=session.colours, headers=listing.headers)
        self._shown: dict[str, dict[str, tuple[object, ...]]] = {}  # node -> row -> what its columns showed

    def first(self, nodes: Sequence[_Node], field: str | None) -> None:
        rows = []
        for name, mine in nodes:
            rows += mine
            if self._listing.watch:
                self._shown[name] = {row.key: self._seen(row) for row in mine}
        if not rows:
            self.say_empty()
        self.print(sort_rows(rows, field))

    def say_empty(self) -> None:
        if self._listing.output not in {"json", "yaml"}:
            self._session.say(self._source.empty or f"No {self._source.kind.word} found.")

    def changed(self, item: Raw, *, deleted: bool = False) -> None:
        """Print the rows that are not as they were; say which are gone."""
        node, rows = self._source.node(item)
        rows = [] if deleted else rows
        before, after = self._shown.get(node, {}), {row.key: self._seen(row) for row in rows}
        for key in before:
            if key not in after:
                self._session.say(f"{key}: it no longer exists")
        self._shown[node] = after
        if fresh := [row for row in rows if before.get(row.key) != after[row.key]]:
            self.print(fresh, again=True)
        self._session.flush()

    def relisted(self, items: Sequence[Raw]) -> None:
        there = {facts.name_of(item) for item in items}
        for node in [name for name in self._shown if name not in there]:
            self.changed({"metadata": {"name": node}}, deleted=True)
        for item in items:
            self.changed(item)

    def _seen(self, row: Row) -> tuple[object, ...]:
        return tuple(row.fields.get(column.field) for column in self._columns)

    def print(self, rows: Sequence[Row], *, again: bool = False) -> None:
        out, output = self._session.out, self._listing.output
        if output == "json":
            out(documents.as_json(documents.of_rows(self._source.kind, rows)))
        elif output == "yaml":
            if again:
                out("---")
            out(documents.as_yaml(documents.of_rows(self._source.kind, rows)))
        elif output == "name":
            for row in rows:
                out(row.name)
        else:
            for line in self._table.lines(rows, self._session.now()):
                out(line)


def _follow(session: Session, listing: Listing, source: Source, printer: _Printer, version: str) -> None:
    """Until a person ends it. A watch that breaks goes on from where it was, or from a new list where that is gone."""
    session.flush()
    waits, failures = Backoff(initial_seconds=1.0, max_seconds=30.0), 0
    name = source.names[0] if source.names else ""
    while True:
        try:
            if not version:
                items, version = session.api.list_all(objects.NODE_DEVICES, selector=listing.selector)
                printer.relisted([item for item in items if not name or facts.name_of(item) == name])
            fields = f"metadata.name={name}" if name else ""
            events = session.api.watch(objects.NODE_DEVICES, version, selector=listing.selector, fields=fields)
            for event, item in events:
                version = text(mapping(item.get("metadata")).get("resourceVersion")) or version
                if event != "BOOKMARK":
                    printer.changed(item, deleted=event == "DELETED")
                failures = 0
        except ApiError as error:
            if error.status in {401, 403}:
                raise
            if error.expired:
                version = ""
                continue
            session.say(f"{error}; trying again")
            failures += 1
            time.sleep(waits.after(failures))


# --- several clusters ------------------------------------------------------------------------------------------------
class ClustersError(OperationError):
    """Some of several clusters could not be read; what the others said is shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`problem`: why nothing is known of it; empty: it is. `refused`: it answered, and that one may not read it.
    `installed`: whether it has our kinds at all."""

    context: str
    items: Sequence[Raw] = ()
    problem: str = ""
    refused: bool = False
    installed: bool = True

    @property
    def state(self) -> str:
        if self.problem:
            return "Forbidden" if self.refused else "Unreachable"
        return "Answered" if self.installed else "NotInstalled"


class _Reading:
    def __init__(self, session: Session, names: Sequence[str], selector: str) -> None:
        self._session, self._names, self._selector = session, names, selector
        self._answer = Answer("")
        self._began, self._ended = Event(), Event()
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        context = self._session.context_name
        try:
            self._answer = Answer(context, self._read())
        except NodeDevicesError as error:
            absent = bool(getattr(error, "no_such_kind", False))
            refused = getattr(error, "status", 0) in {401, 403}
            problem = Answer(context, problem=str(error), refused=refused)
            self._answer = Answer(context, installed=False) if absent else problem
        finally:
            self._session.close()
            self._ended.set()
            self._began.set()

    def _read(self) -> list[Raw]:
        api = self._session.api
        api.page_read = lambda _: self._began.set()
        if not self._names:
            return api.list_all(objects.NODE_DEVICES, selector=self._selector)[0]
        found = []
        for name in self._names:
            item = api.find(objects.at(objects.NODE_DEVICES, name))
            if item is not None:  # else it may be a node of another cluster
                found.append(item)
            self._began.set()
        return found

    def answer(self, deadline: float, seconds: float) -> Answer:
        if not self._began.wait(max(0.0, deadline - time.monotonic())):
            return Answer(self._session.context_name, problem=f"no answer within {seconds:g} s")
        self._ended.wait()
        return self._answer


def read_clusters(
    session: Session, contexts: Sequence[str], names: Sequence[str], selector: str, seconds: float = SECONDS
) -> list[Answer]:
    """The NodeDevices of each cluster, in the order of the contexts."""
    deadline = time.monotonic() + seconds
    readings = [_Reading(session.beside(context, seconds), names, selector) for context in contexts]
    return [reading.answer(deadline, seconds) for reading in readings]
