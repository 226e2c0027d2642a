"""`kubectl nodedevices check`: does the whole chain work, from the driver to the pod; and where does it break."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from nodedevices_api.dra import DRA_DRIVER
from nodedevices_common.raw import Raw
from nodedevices_common.table import Row
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.listing import Listing, print_rows
from nodedevices_kubectl.session import Session, allowed
from nodedevices_kubectl.views import check as view, claims, facts
from nodedevices_kubectl.views.findings import BROKEN, CLUSTER, KIND, OK, PENDING, WARNING, having, rows

FOUND_BROKEN, FOUND_PENDING = 3, 4  # exit codes
MOST_NEXT = 5  # links of which it is said what to do; -o wide and -o json say it of all
LOOK_SECONDS = 3


@click.command(short_help="Check each link from driver to pod, and show what is broken; exit codes for CI.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@click.option("--all", "everything", is_flag=True, help="Also links that are ok; the default where nodes are named.")
@click.option(
    "--installation",
    is_flag=True,
    help="Only what was installed: an operator that leads, and the agents on Nodes that are Ready. A device at fault "
    "breaks nothing.",
)
@click.option("--no-lease", is_flag=True, help="With --installation: one operator, which needs no Lease to lead.")
@click.option(
    "--wait",
    "seconds",
    type=click.IntRange(0, 3600),
    metavar="SECONDS",
    default=0,
    help="Look again, for so long at most, while something is broken or pending.",
)
@options.system_namespace("the operator")
@options.with_session
@options.one_listing
def check(
    session: Session,
    listing: Listing,
    *,
    names: tuple[str, ...],
    everything: bool,
    installation: bool,
    no_lease: bool,
    seconds: int,
    system_namespace: str,
) -> None:
    """Check each link from driver to pod on each node, and show what is broken and what to do next. Without names: all
    nodes, but only what is not ok. Exit code 3 when something is broken; 4 when nothing is broken but something is
    pending, which means that it changed less than a minute ago. Warnings do not change the exit code.

    \b
    kubectl nodedevices check                                # CI, after an upgrade
    kubectl nodedevices check n1                             # every link of one node
    kubectl nodedevices check --installation --wait 60       # as `helm test` does
    """
    if names and listing.selector:
        raise click.UsageError("give names, or a selector (-l), not both")
    if installation and (names or listing.selector):
        raise click.UsageError("--installation: of all nodes; give no names and no selector (-l)")
    if no_lease and not installation:
        raise click.UsageError("--no-lease: only valid with --installation")
    elected = not no_lease if installation else None
    for left in range(-(-seconds // LOOK_SECONDS), -1, -1):
        nodes, found = _judged(session, names, listing.selector, system_namespace, elected=elected)
        broken, pending = having(BROKEN, found), having(PENDING, found)
        if not (broken or pending):
            break
        if left:
            session.sleep(LOOK_SECONDS)
    shown = found if names or everything else [row for row in found if row.fields["status"] != OK]
    print_rows(session, listing, KIND, shown)
    session.flush()
    session.say(_summary(nodes, broken, pending, having(WARNING, found)))
    for row in broken[:MOST_NEXT]:
        if row.fields["next"]:
            session.say(f"  {row.name}: {row.fields['next']}")
    if broken or pending:
        click.get_current_context().exit(FOUND_BROKEN if broken else FOUND_PENDING)


def _judged(
    session: Session, names: tuple[str, ...], selector: str, system_namespace: str, *, elected: bool | None
) -> tuple[str, list[Row]]:
    """Return how many nodes were looked at, for people, and every link. `elected`: of an installation, whether its
    operators agree by a Lease; None: of the whole chain."""
    try:
        if elected is not None:
            seen = _read_installation(session, system_namespace)
            found = view.judge_installation(seen, session.now(), elected=elected)
            return view.watched(seen, found), found
        seen = _read(session, names, selector, system_namespace)
    except ApiError as error:
        if not error.no_such_kind:
            raise
        return "0 nodes", rows(CLUSTER, [view.not_installed(session.context.name)])
    count = len(seen.items)
    return f"{count} node{'' if count == 1 else 's'}", view.judge(seen, session.now())


def _summary(nodes: str, broken: list[Row], pending: list[Row], warnings: list[Row]) -> str:
    if not broken:
        also = [f"{word}: {len(those)}" for word, those in (("warnings", warnings), ("pending", pending)) if those]
        again = " Run it again in a minute." if pending else ""
        return "; ".join([f"{nodes}: nothing is broken", *also]) + f".{again}"
    where = len({row.fields["node"] for row in broken})
    links = f"{len(broken)} link{' is' if len(broken) == 1 else 's are'} broken"
    return f"{nodes}: {links} on {where}. What to do{' first' if len(broken) > MOST_NEXT else ''}:"


# --- what is read ----------------------------------------------------------------------------------------------------
def _read(session: Session, names: Sequence[str], selector: str, system_namespace: str) -> view.Seen:
    """Without names and selector all of the cluster."""
    api = session.api
    if names:
        items = [session.node(name) for name in dict.fromkeys(names)]
        found = allowed(lambda: [api.find(objects.at(objects.NODES, facts.name_of(item))) for item in items])
        return view.Seen(items, by_name(found), claims=claims_of(session, items))
    items, _ = api.list_all(objects.NODE_DEVICES, selector=selector)
    if not items:
        agents = None if selector else session.listed(objects.pods(system_namespace), selector=facts.AGENTS)
        return view.Seen(items, agents=agents or ())
    nodes = by_name(session.listed(objects.NODES))
    if selector:
        return view.Seen(items, nodes, claims=claims_of(session, items))
    policies, _ = api.list_all(objects.POLICIES)
    lease, seen = lease_of(session, system_namespace), claims_of(session, items)
    return view.Seen(items, nodes, whole=True, policies=policies, lease=lease, claims=seen)


def claims_of(session: Session, items: Sequence[Raw]) -> claims.SeenClaims | None:
    """Read what there is of DRA, where a node serves by it. Claims and Events only where a pod waits with a claim."""
    if not any(map(claims.by_dra, items)):
        return None
    node = f",spec.nodeName={facts.name_of(items[0])}" if len(items) == 1 else ""
    try:
        slices = session.listed(objects.SLICES, fields=f"spec.driver={DRA_DRIVER}{node}")
    except ApiError as error:
        if error.status != 404:
            raise
        return claims.SeenClaims(api=False)
    pending = session.listed(objects.PODS, fields="status.phase=Pending")
    waiting = None if pending is None else [pod for pod in pending if claims.named(pod)]
    found = session.listed(objects.CLAIMS) if waiting else []
    return claims.SeenClaims(
        slices=slices,
        classes=session.listed(objects.CLASSES),
        pods=waiting,
        claims=None if found is None else {facts.namespaced(claim): claim for claim in found},
        events=session.listed(objects.EVERY_EVENT, fields=f"reason={claims.NOT_PREPARED}") if waiting else [],
    )


def _read_installation(session: Session, system_namespace: str) -> view.Seen:
    """Read all agents' pods and their Nodes, and what these report. Without the right to, an error."""
    items, _ = session.api.list_all(objects.NODE_DEVICES)
    nodes, _ = session.api.list_all(objects.NODES)
    agents, _ = session.api.list_all(objects.PODS, selector=facts.AGENTS)
    return view.Seen(items, by_name(nodes), agents=agents, lease=lease_of(session, system_namespace))


def by_name(items: Iterable[Raw | None] | None) -> dict[str, Raw] | None:
    """Return those that there are, by name; None stays None."""
    return None if items is None else {facts.name_of(item): item for item in items if item is not None}


def lease_of(session: Session, namespace: str) -> Raw | None:
    """The operator's; empty: there is none; None: this person may not read it."""
    return allowed(lambda: session.api.find(objects.operator_lease(namespace)) or {})
