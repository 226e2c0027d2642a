"""`kubectl nodedevices top`: how busy devices are, as their agents measure it."""

from __future__ import annotations

import click
from nodedevices_common.errors import OperationError
from nodedevices_common.table import Row

from nodedevices_kubectl import checking, objects, options, readings
from nodedevices_kubectl.listing import Listing, print_rows
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views import top as view


@click.command(short_help="Show how busy devices are: utilisation, memory, power, temperature.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@click.option("--idle", is_flag=True, help="Only devices that pods hold and that compute nothing.")
@click.option(
    "--system-namespace", metavar="NS", default=checking.SYSTEM_NAMESPACE, show_default=True, help="Of the agents."
)
@options.with_session
@options.one_listing
def top(session: Session, listing: Listing, *, names: tuple[str, ...], idle: bool, system_namespace: str) -> None:
    """Show how busy devices are, as their agents measure it (--telemetry): utilisation, memory, power, temperature. The
    agents are asked through the API server's proxy to their pods, which needs its own permission.

    \b
    kubectl nodedevices top --sort-by util
    kubectl nodedevices top --idle             # held, and not used
    """
    if names and listing.selector:
        raise click.UsageError("give names, or a selector (-l), not both")
    items = [session.node(name) for name in dict.fromkeys(names)]
    if not names:
        items, _ = session.api.list_all(objects.NODE_DEVICES, selector=listing.selector)
    answers = readings.read(session, system_namespace, frozenset(map(facts.name_of, items)))
    rows: list[Row] = []
    for item in items:
        answer = answers.get(facts.name_of(item), readings.Answer(problem=view.NO_AGENT))
        rows += view.rows(item, view.readings(answer.metrics), answer.problem, idle=idle)
    if not rows:
        session.say("No devices found that are held and idle." if idle else "No devices found.")
    print_rows(session, listing, view.KIND, rows)
    session.flush()
    if silent := [row for row in rows if row.fields["problem"]]:
        why = silent[0].fields
        raise OperationError(
            f"{len(silent)} of {len(items)} nodes gave no readings: {why['node']}: {why['problem']}; "
            "docs/kubectl.md says what top needs"
        )
