"""`kubectl nodedevices devices`: a row for each device and partition."""

from __future__ import annotations

import click

from nodedevices_kubectl import options
from nodedevices_kubectl.listing import Listing, Source, show
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import devices as view


@click.command(short_help="List devices: model, health, and holders.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@options.namespace
@click.option("--unhealthy", is_flag=True, help="Only devices that are not Healthy: Unhealthy, Degraded, Unknown.")
@click.option("--model", metavar="TEXT", default="", help="Only devices with this in their product name.")
@options.with_session
@options.listing
@options.several
def devices(
    session: Session,
    listing: Listing,
    *,
    names: tuple[str, ...],
    namespace: str,
    all_namespaces: bool,
    unhealthy: bool,
    model: str,
) -> None:
    """List devices: model, health and since when, what would help, and which pods hold them. Partitions (MIG
    devices) follow their device.

    \b
    kubectl nodedevices devices --unhealthy     # what needs a person
    kubectl nodedevices devices n1 -o wide      # one node: PCI addresses, NUMA nodes, ids
    kubectl nodedevices devices -n ml           # held by pods of this namespace
    """
    if namespace and all_namespaces:
        raise click.UsageError("give -n or -A, not both")
    wanted = view.Filter(namespace, unhealthy, model)
    words = [
        word
        for given, word in (
            (unhealthy, "not healthy"),
            (model, f"of a model with {model!r} in its name"),
            (namespace, f"held by pods of namespace {namespace}"),
        )
        if given
    ]
    empty = f"No devices found that are {' and '.join(words)}." if words else ""
    show(session, listing, Source(view.KIND, lambda item: view.rows(item, wanted), names, empty))
