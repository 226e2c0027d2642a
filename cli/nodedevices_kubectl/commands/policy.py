"""`kubectl nodedevices policy`: what policies make of nodes, and what a changed one would do before it is applied."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from nodedevices_common.errors import InputError, OperationError
from nodedevices_common.loading import quickly
from nodedevices_common.raw import Raw, mapping
from nodedevices_common.table import Row
from nodedevices_common.text import nearest, show as shown
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.listing import Listing, Source, print_rows, show
from nodedevices_kubectl.session import Session, allowed
from nodedevices_kubectl.views import facts, policies as view

if TYPE_CHECKING:
    from nodedevices_dryrun.policies import PolicyChange
    from nodedevices_dryrun.run import Cluster

HARMFUL, MATCHES_NOTHING = 3, 4  # exit codes
_KINDS = ("NodeDevices", "DevicePolicy", "Node")
_TO_SAVE = "kubectl get nodedevices,devicepolicies,nodes -o json > cluster.json"
MAX_BYTES = 512 << 20  # of one file
MAX_VALUES = 20_000_000  # of one file in YAML: some 5,000 nodes
MOST_EXPLAINED = 5  # nodes; of more the table alone


@click.group(short_help="Show how policies configure nodes, and what a changed policy would do.")
def policy() -> None:
    """Show how policies configure nodes, and what a changed policy would do."""


@policy.command(short_help="Where each part of a node's configuration comes from.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@options.with_session
@options.listing
def explain(session: Session, listing: Listing, names: tuple[str, ...]) -> None:
    """Where each part of a node's configuration comes from: which policy supplies the section, which ones it overrides,
    whether it is in effect, and why not.

    \b
    kubectl nodedevices policy explain n1
    kubectl nodedevices policy explain n1 -o yaml     # with the whole values
    """
    policies = {facts.name_of(raw): raw for raw in session.api.list_all(objects.POLICIES)[0]}
    words: list[str] = []
    seen: set[str] = set()

    def rows(item: Raw) -> list[Row]:
        if facts.name_of(item) not in seen and len(seen) < MOST_EXPLAINED:
            seen.add(facts.name_of(item))
            words.extend(view.explained_in_words(item, policies))
        return list(view.explained(item, policies))

    show(session, listing, Source(view.EXPLAIN_KIND, rows, names, "No section is set by a policy."))
    for line in words:
        session.say(line)


@policy.command(name="dry-run", short_help="What a changed policy would do to nodes, ids and pods.")
@click.option(
    "-f", "--filename", "given", metavar="FILE", multiple=True, help="A DevicePolicy in YAML or JSON; -: stdin."
)
@click.option(
    "--delete",
    "deleted",
    metavar="NAME",
    multiple=True,
    help="What if this policy were deleted.",
    shell_complete=options.complete_policies,
)
@click.option("--from", "saved", metavar="FILE", multiple=True, help="Saved objects in place of a cluster.")
@options.with_session
@options.one_listing
def dry_run(
    session: Session, listing: Listing, *, given: tuple[str, ...], deleted: tuple[str, ...], saved: tuple[str, ...]
) -> None:
    """What would change if these policies were applied or deleted: on which nodes, in which sections, which resource
    names and ids, and which pods hold what changes. Nothing is written. Exit code 3 when something would be refused,
    would wait for pods or be held back by them, or take something from pods; 4 when a policy selects no node, or one
    of its entries matches nothing.

    \b
    kubectl nodedevices policy dry-run -f share.yaml
    kubectl nodedevices policy dry-run --delete share
    kubectl get nodedevices,devicepolicies,nodes -o json > cluster.json
    kubectl nodedevices policy dry-run -f share.yaml --from cluster.json     # no cluster needed
    """
    if not given and not deleted:
        raise click.UsageError("give a policy with -f FILE, or --delete NAME")
    if saved and listing.selector:
        raise click.UsageError("-l: only valid with a cluster; the files of --from are read completely")
    policies = _objects_of(given, ("DevicePolicy",))
    with quickly():  # a fleet's objects stay, too: a third of the time would go into looking through them
        run = _load_dry_run()
        cluster = _saved(saved, run) if saved else _read(session, run)
        found = run.dry_run(cluster, policies, deleted, session.now())
    if listing.selector:
        from msgspec.structs import replace  # noqa: PLC0415

        wanted = set(session.api.names(objects.NODE_DEVICES, selector=listing.selector))
        found = replace(found, nodes=tuple(effect for effect in found.nodes if effect.node in wanted))
    refusals = {} if saved else _checked(session, policies, cluster.policies, found.changes)
    changes = [_fields(change, found.selected, refusals) for change in found.changes]
    rows = [Row(node.node, node.fields(), key=node.node) for node in found.nodes]
    print_rows(session, listing, view.DRY_RUN_KIND, rows, policies=changes)
    session.flush()
    for line in view.words(changes, rows, len(cluster.items)):
        session.say(line)
    if found.harmful or any(change["refusal"] for change in changes):
        click.get_current_context().exit(HARMFUL)
    if found.matches_nothing:
        click.get_current_context().exit(MATCHES_NOTHING)


def _load_dry_run() -> Any:
    """Loaded here: it takes longer than a command may take to start."""
    try:
        from nodedevices_dryrun import run  # noqa: PLC0415
    except ImportError as error:
        raise OperationError(
            f"policy dry-run needs {error.name}, which is not installed; in a clone, pipx install '.[cli]' installs it"
        ) from error
    return run


def _saved(paths: Sequence[str], run: Any) -> Cluster:
    found: dict[str, list[Raw]] = {kind: [] for kind in _KINDS}
    for raw in _objects_of(paths, _KINDS):
        found[raw["kind"]].append(raw)
    if not found["NodeDevices"]:
        raise InputError(f"--from {', '.join(paths)}: no NodeDevices in these files; to save them: {_TO_SAVE}")
    return run.Cluster(found["NodeDevices"], found["DevicePolicy"], found["Node"] or None)  # type: ignore[no-any-return]


def _read(session: Session, run: Any) -> Cluster:
    """Of the whole cluster, as the operator has it: budgets and the breaker count all nodes of a policy."""
    items, _ = session.api.list_all(objects.NODE_DEVICES)
    policies, _ = session.api.list_all(objects.POLICIES)
    nodes = session.listed(objects.NODES)
    if nodes is None:
        session.say("You may not read Nodes: the labels in their NodeDevices are used instead.")
    namespace, _, name = run.record_of(policies).partition("/")
    record = allowed(lambda: session.api.find(objects.configmap(namespace, name))) if name else None
    return run.Cluster(items, policies, nodes, record)  # type: ignore[no-any-return]


def _checked(
    session: Session, given: Sequence[Raw], existing: Sequence[Raw], changes: Sequence[PolicyChange]
) -> dict[str, str]:
    """Let the API server check what our own schema takes: return by policy what it would refuse."""
    versions = {facts.name_of(raw): facts.version_of(raw) for raw in existing}
    refused = {change.name for change in changes if change.refusal}
    found: dict[str, str] = {}
    for raw in given:
        name = facts.name_of(raw)
        if name in refused:
            continue
        body = {key: raw[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in raw}
        try:
            session.api.try_write(objects.POLICIES, body, versions.get(name, ""))
        except ApiError as error:
            if error.status == 403:
                session.say(f"The API server has not checked policy {name}: {error}")
            elif 400 <= error.status < 500:
                found[name] = str(error)
            else:
                raise
    return found


def _fields(
    change: PolicyChange, selected: Mapping[str, tuple[int, int]], refusals: Mapping[str, str]
) -> dict[str, Any]:
    was, will = selected[change.name]
    return {
        "name": change.name,
        "change": change.how,
        "selectsNow": was,
        "selects": will,
        "dryRun": change.would_only_report,
        "refusal": change.refusal or refusals.get(change.name, ""),
    }


# --- files -----------------------------------------------------------------------------------------------------------
# Kubernetes objects as people write them and as `kubectl get -o yaml` or `-o json` saves them. A list is taken apart.
# What is no object, or of a kind that the caller does not take, is refused with file and place.
def _objects_of(paths: Sequence[str], kinds: Sequence[str]) -> list[Raw]:
    """Every object of these files, each of one of the kinds. InputError names the file."""
    found: list[Raw] = []
    for path in paths:
        for place, raw in _objects(_documents(path), path):
            kind = raw.get("kind")
            if kind not in kinds:
                wanted = " or ".join(kinds)
                hint = nearest(kind, kinds) if isinstance(kind, str) else ""
                raise InputError(f"{place}: kind: {shown(kind)} is not supported here; give {wanted}{hint}")
            name = mapping(raw.get("metadata")).get("name")
            if not isinstance(name, str) or not name:
                raise InputError(f"{place}: metadata.name: {shown(name)}: give the object's name")
            found.append(raw)
    return found


def _documents(path: str) -> list[Any]:
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file with objects, in YAML or JSON") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: more than {MAX_BYTES >> 20} MiB; give fewer objects at a time")
    if raw.lstrip()[:1] in {b"{", b"["}:
        try:
            return [json.loads(raw)]
        except ValueError:
            pass  # YAML's flow style, or what YAML's reader names better
    from nodedevices_common import safe_yaml  # noqa: PLC0415 - as slow as the rest of a start

    try:
        return safe_yaml.load_all(raw, max_values=MAX_VALUES)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _objects(documents: Sequence[Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each with where it is, for people."""
    for number, document in enumerate(documents, 1):
        place = path if len(documents) == 1 else f"{path}: document {number}"
        if document is None:
            continue  # a separator more than needed
        if isinstance(document, list):  # as a support bundle has them
            document = {"kind": "List", "items": document}  # noqa: PLW2901
        if not isinstance(document, dict):
            raise InputError(f"{place}: {shown(document)} is not an object; give apiVersion, kind, metadata and spec")
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            for at, item in enumerate(items):
                if not isinstance(item, dict):
                    raise InputError(f"{place}: items[{at}]: {shown(item)} is not an object")
                yield f"{place}: items[{at}]", item
        else:
            yield place, document
