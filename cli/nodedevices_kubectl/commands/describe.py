"""`kubectl nodedevices describe`: a node, or one of its devices, on one screen."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import describe as view
from nodedevices_kubectl.views import find


@click.command(short_help="Show a node, or one of its devices, on one screen.")
@click.argument("what", metavar="NODE[/DEVICE]", shell_complete=options.complete_devices)
@options.with_session
def describe(session: Session, what: str) -> None:
    """Show a node on one screen, or one of its devices: by name, by index, by id, or by the beginning of its id.

    \b
    kubectl nodedevices describe n1
    kubectl nodedevices describe n1/gpu-3
    kubectl nodedevices describe n1/3
    """
    node, device = find.split(what)
    item = session.node(node)
    now = session.now()
    if device:
        sections = view.device(item, find.device(item, device), now)
    else:
        sections = view.node(item, now, _events(session, node))
    for line in view.lines(sections, now, colours=session.colours):
        session.out(line)


def _events(session: Session, node: str) -> list[Raw] | None:
    """About the node's NodeDevices; None: this person may not read them."""
    about = f"involvedObject.kind=NodeDevices,involvedObject.name={node}"
    try:
        return session.api.list_all(objects.EVENTS, fields=about)[0]
    except ApiError as error:
        if error.status in {403, 404}:
            return None
        raise
