"""`kubectl nodedevices pods`: a row for each pod that holds devices. Who may read a namespace only has them from the
pods' own status."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw
from nodedevices_common.table import Row
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.listing import Listing, Source, print_rows, show
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import pods as view
from nodedevices_kubectl.views import pods_alone

FORBIDDEN = 403


@click.command(short_help="List pods that hold devices, with health of the devices.")
@click.argument("names", metavar="[POD]...", nargs=-1)
@options.namespace
@options.with_session
@options.listing
@options.several
def pods(session: Session, listing: Listing, names: tuple[str, ...], namespace: str, all_namespaces: bool) -> None:
    """List pods that hold devices: which devices, on which node, since when, and their health. Pods of the context's
    namespace, as with kubectl get pods; -A for all.

    \b
    kubectl nodedevices pods -A --sort-by health
    kubectl nodedevices pods train-0 -n ml -o wide     # by which resource, how many shares, which ids
    """
    if namespace and all_namespaces:
        raise click.UsageError("give -n or -A, not both")
    if listing.several and not (namespace or all_namespaces):
        raise click.UsageError("of several clusters: give -n NAMESPACE or -A")
    where = "" if all_namespaces else namespace or session.context.namespace
    wanted = frozenset(names)

    def rows(item: Raw) -> list[Row]:
        return [row for row in view.rows(item, where) if not wanted or row.fields["pod"] in wanted]

    place = f"in {where} namespace" if where else "in any namespace"
    who = f"Pod {', '.join(names)} holds no devices" if names else "No pods that hold devices found"
    empty = f"{who} {place}."
    try:
        show(session, listing, Source(view.KIND, rows, empty=empty))
    except ApiError as error:
        if error.status != FORBIDDEN or not where or listing.watch or listing.selector or listing.several:
            raise
        _show_alone(session, listing, where, wanted, empty)


def _show_alone(session: Session, listing: Listing, namespace: str, wanted: frozenset[str], empty: str) -> None:
    items, _ = session.api.list_all(objects.pods(namespace))
    rows = [row for pod in items for row in pods_alone.rows(pod) if not wanted or row.fields["pod"] in wanted]
    session.say(
        "You may not list NodeDevices, which are cluster-scoped (role nodedevices-view): the pods' own status is shown "
        "instead."
    )
    if rows or listing.output in {"json", "yaml"}:
        print_rows(session, listing, view.KIND, rows)
    else:
        session.say(empty)
    session.flush()
