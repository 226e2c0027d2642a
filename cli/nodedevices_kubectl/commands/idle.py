"""`kubectl nodedevices idle`: a row for each device that a container holds and does not use."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw
from nodedevices_common.table import Row

from nodedevices_kubectl import options
from nodedevices_kubectl.listing import Listing, Source, show
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import idle as view


@click.command(short_help="List devices that pods hold but do not use, and for how long.")
@options.namespace
@click.option("--unknown", is_flag=True, help="Also devices of which it is not known: shares, partitions, no readings.")
@options.with_session
@options.listing
@options.several
def idle(session: Session, listing: Listing, namespace: str, unknown: bool, all_namespaces: bool) -> None:
    """List devices that pods hold but do not use, as their agents report where a policy has idle.afterSeconds:
    NeverUsed, Idle or MemoryOnly, and for how long. Pods of the context's namespace; -A for all.

    \b
    kubectl nodedevices idle -A --sort-by for
    kubectl nodedevices idle -n ml -o wide
    """
    if namespace and all_namespaces:
        raise click.UsageError("give -n or -A, not both")
    if listing.several and not (namespace or all_namespaces):
        raise click.UsageError("of several clusters: give -n NAMESPACE or -A")
    where = "" if all_namespaces else namespace or session.context.namespace

    def rows(item: Raw) -> list[Row]:
        return list(view.rows(item, where, unknown=unknown))

    place = f"in {where} namespace" if where else "in any namespace"
    show(session, listing, Source(view.KIND, rows, empty=f"No devices found {place} that are held and not used."))
