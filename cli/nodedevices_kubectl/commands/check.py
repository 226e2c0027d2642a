"""`kubectl nodedevices check`: does the whole chain work, from the driver to the pod; and where does it break."""

from __future__ import annotations

import click
from nodedevices_common.table import Row
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import checking, options
from nodedevices_kubectl.listing import Listing, print_rows
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import check as view
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
            seen = checking.read_installation(session, system_namespace)
            found = view.judge_installation(seen, session.now(), elected=elected)
            return view.watched(seen, found), found
        seen = checking.read(session, names, selector, system_namespace)
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
