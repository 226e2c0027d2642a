"""The part that all listing commands share: read, sort, print in the wanted form, follow what changes (`-w`).

Several clusters are read in a thread each, and one that does not answer costs three seconds. What is bounded is the
wait for a cluster's first page, its login plugin included; a cluster that answers may take as long as its pages do. An
answer that comes too late is not waited for, and its thread ends with the program.

JSON and YAML are one document with a version, the rows' fields as they are. Characters beyond ASCII are escaped in
both, so that no text of an object can steer a terminal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

import click
from nodedevices_common.backoff import Backoff
from nodedevices_common.errors import NodeDevicesError, OperationError
from nodedevices_common.raw import Raw
from nodedevices_common.table import Column, Kind, Row, TableText, sort_rows
from nodedevices_common.text import nearest
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts

SECONDS = 3.0
API_VERSION = "kubectl.nodedevices.io/v1alpha1"  # of what `-o json` and `-o yaml` write; a field may be added to it
OUTPUTS = ("table", "wide", "json", "yaml", "name")
ANSWERED = "Answered"


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

    def node(self, item: Raw) -> tuple[str, list[Row]]:
        """Return the node's name and its rows."""
        return facts.name_of(item), list(self.rows(item))


def document(output: str, kind: str, **content: Any) -> str:
    """Return one document, in JSON or YAML."""
    value = {"apiVersion": API_VERSION, "kind": kind, **content}
    if output == "json":
        return json.dumps(value, indent=4)
    import yaml  # noqa: PLC0415 - takes as long to load as all the rest, and few ask for it

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=False)).rstrip("\n")


def show(session: Session, listing: Listing, source: Source) -> None:
    field = _sort_field(source.kind, listing.sort_by)
    if source.names and listing.selector:
        raise click.UsageError("give names, or a selector (-l), not both")
    if listing.several:
        _show_several(session, listing, source, field)
        return
    if source.names:
        items = [session.node(name) for name in dict.fromkeys(source.names)]
        if listing.watch and len(items) > 1:
            raise click.UsageError("-w: give one name, or none to watch all")
        nodes, version = [source.node(item) for item in items], facts.version_of(items[0])
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
    rows = [
        Row(f"{it.context}:{row.name}", {"cluster": it.context, **row.fields}, key=f"{it.context}:{row.key}")
        for it in answers
        for item in it.items
        for row in source.rows(item)
    ]
    without = [  # anything to show
        Row(f"{it.context}:", {"cluster": it.context, kind.state: it.state, "reason": it.problem}, key=it.context)
        for it in answers
        if it.state != ANSWERED
    ]
    printer = _Printer(session, listing, replace(source, kind=kind))
    if not rows and not without:
        printer.say_empty()
    printer.print(sort_rows(rows, field) + ([] if listing.output == "name" else without))
    session.flush()
    if silent := [answer for answer in answers if answer.problem]:
        said = "; ".join(f"{answer.context}: {answer.problem}" for answer in silent)
        raise OperationError(f"{len(silent)} of {len(answers)} clusters could not be read: {said}")


def print_rows(session: Session, listing: Listing, kind: Kind, rows: Sequence[Row], **also: Any) -> None:
    """Rows that are known already, in the wanted form. `also`: what a document has before them."""
    field = _sort_field(kind, listing.sort_by)
    _Printer(session, listing, Source(kind, lambda item: ())).print(sort_rows(rows, field), **also)


def _sort_field(kind: Kind, given: str) -> str | None:
    """Return the field that `--sort-by` names, by a header or by the field's own name; None: none is named."""
    wanted = given.strip().strip("{}").lstrip(".").lower()
    for column in kind.columns:
        if wanted in {column.header.lower(), column.field.lower()}:
            return column.field
    if given:
        names = [column.header.lower() for column in kind.columns]
        hint = nearest(given, names)
        raise click.UsageError(f"--sort-by {given}: no such column{hint or '; there are ' + ', '.join(names)}")
    return None


class _Printer:
    def __init__(self, session: Session, listing: Listing, source: Source) -> None:
        self._session, self._listing, self._source = session, listing, source
        self._columns = [it for it in source.kind.columns if not it.wide or listing.output == "wide"]
        self._table = TableText(self._columns, colours=session.colours, headers=listing.headers)
        self._shown: dict[str, dict[str, tuple[object, ...]]] = {}  # node -> row -> what its columns showed

    def first(self, nodes: Sequence[tuple[str, list[Row]]], field: str | None) -> None:
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

    def print(self, rows: Sequence[Row], *, again: bool = False, **also: Any) -> None:
        output = self._listing.output
        if output in {"json", "yaml"}:
            items = [dict(row.fields) for row in rows]
            separator = "---\n" if again and output == "yaml" else ""
            lines = iter([separator + document(output, self._source.kind.name, **also, items=items)])
        elif output == "name":
            lines = (row.name for row in rows)
        else:
            lines = self._table.lines(rows, self._session.now())
        for line in lines:
            self._session.out(line)


def _follow(session: Session, listing: Listing, source: Source, printer: _Printer, version: str) -> None:
    """Until a person ends it. A watch that breaks goes on from where it was, or from a new list where that is gone."""
    session.flush()
    waits, failures = Backoff(initial_seconds=1.0, max_seconds=30.0), 0
    selector, fields = listing.selector, f"metadata.name={source.names[0]}" if source.names else ""
    while True:
        try:
            if not version:
                items, version = session.api.list_all(objects.NODE_DEVICES, selector=selector, fields=fields)
                printer.relisted(items)
            for event, item in session.api.watch(objects.NODE_DEVICES, version, selector=selector, fields=fields):
                version = facts.version_of(item) or version
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
@dataclass(frozen=True, slots=True)
class Answer:
    """`state`: ANSWERED; NotInstalled: it does not have our kinds; Forbidden, Unreachable: nothing is known of it, and
    `problem` says why."""

    context: str
    items: Sequence[Raw] = ()
    state: str = ANSWERED
    problem: str = ""


class _Reading:
    def __init__(self, session: Session, names: Sequence[str], selector: str) -> None:
        self._session, self._names, self._selector = session, names, selector
        self._answer = Answer("")
        self._began, self._thread = Event(), Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        context = self._session.context_name
        try:
            self._answer = Answer(context, self._read())
        except NodeDevicesError as error:
            state = "Forbidden" if getattr(error, "status", 0) in {401, 403} else "Unreachable"
            absent = bool(getattr(error, "no_such_kind", False))
            problem = Answer(context, state=state, problem=str(error))
            self._answer = Answer(context, state="NotInstalled") if absent else problem
        finally:
            self._session.close()
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
            return Answer(self._session.context_name, state="Unreachable", problem=f"no answer within {seconds:g} s")
        self._thread.join()
        return self._answer


def read_clusters(
    session: Session, contexts: Sequence[str], names: Sequence[str], selector: str, seconds: float = SECONDS
) -> list[Answer]:
    """The NodeDevices of each cluster, in the order of the contexts."""
    deadline = time.monotonic() + seconds
    readings = [_Reading(session.beside(context, seconds), names, selector) for context in contexts]
    return [reading.answer(deadline, seconds) for reading in readings]
