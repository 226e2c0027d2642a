"""`kubectl nodedevices policy`: what policies make of nodes, and what a changed one would do before it is applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from nodedevices_common.errors import InputError, OperationError
from nodedevices_common.loading import quickly
from nodedevices_common.raw import Raw
from nodedevices_common.table import Row
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import files, objects, options
from nodedevices_kubectl.listing import Listing, Source, print_rows, show
from nodedevices_kubectl.session import Session, allowed
from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views import policies as view

if TYPE_CHECKING:
    from nodedevices_dryrun.policies import PolicyChange
    from nodedevices_dryrun.rehearsal import Cluster

HARMFUL, MATCHES_NOTHING = 3, 4  # exit codes
_KINDS = ("NodeDevices", "DevicePolicy", "Node")
_TO_SAVE = "kubectl get nodedevices,devicepolicies,nodes -o json > cluster.json"
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
    policies = files.read(given, ("DevicePolicy",))
    with quickly():  # a fleet's objects stay, too: a third of the time would go into looking through them
        rehearsal = _rehearsal()
        cluster = _saved(saved, rehearsal) if saved else _read(session, rehearsal)
        found = rehearsal.rehearse(cluster, policies, deleted, session.now())
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


def _rehearsal() -> Any:
    """Loaded here: it takes longer than a command may take to start."""
    try:
        from nodedevices_dryrun import rehearsal  # noqa: PLC0415
    except ImportError as error:
        raise OperationError(
            f"policy dry-run needs {error.name}, which is not installed; in a clone, pipx install '.[cli]' installs it"
        ) from error
    return rehearsal


def _saved(paths: Sequence[str], rehearsal: Any) -> Cluster:
    found: dict[str, list[Raw]] = {kind: [] for kind in _KINDS}
    for raw in files.read(paths, _KINDS):
        found[raw["kind"]].append(raw)
    if not found["NodeDevices"]:
        raise InputError(f"--from {', '.join(paths)}: no NodeDevices in these files; to save them: {_TO_SAVE}")
    return rehearsal.Cluster(found["NodeDevices"], found["DevicePolicy"], found["Node"] or None)  # type: ignore[no-any-return]


def _read(session: Session, rehearsal: Any) -> Cluster:
    """Of the whole cluster, as the operator has it: budgets and the breaker count all nodes of a policy."""
    items, _ = session.api.list_all(objects.NODE_DEVICES)
    policies, _ = session.api.list_all(objects.POLICIES)
    nodes = session.listed(objects.NODES)
    if nodes is None:
        session.say("You may not read Nodes: the labels in their NodeDevices are used instead.")
    namespace, _, name = rehearsal.record_of(policies).partition("/")
    record = allowed(lambda: session.api.find(objects.configmap(namespace, name))) if name else None
    return rehearsal.Cluster(items, policies, nodes, record)  # type: ignore[no-any-return]


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
