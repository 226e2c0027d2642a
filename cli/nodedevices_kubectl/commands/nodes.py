"""`kubectl nodedevices nodes`: the fleet, a row for each node."""

from __future__ import annotations

import click

from nodedevices_kubectl import options
from nodedevices_kubectl.listing import Listing, Source, show
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import nodes as view


@click.command(short_help="List nodes: health of agent and devices, and held devices.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@options.with_session
@options.listing
@options.several
def nodes(session: Session, listing: Listing, names: tuple[str, ...]) -> None:
    """List nodes: health of the agent and of its devices, how many devices are held, and what is wrong.

    \b
    kubectl nodedevices                      # all
    kubectl nodedevices nodes -o wide        # also what is free or withheld, and versions
    kubectl nodedevices nodes -l pool=x -w   # some, and whatever changes
    kubectl nodedevices --all-contexts       # of every cluster, in one table
    """
    empty = (
        "No nodes with devices found. Is the agent running? kubectl -n nodedevices-system get pods"
        if not (names or listing.selector)
        else ""
    )
    show(session, listing, Source(view.KIND, lambda item: [view.row(item)], names, empty))
