"""`kubectl nodedevices describe`: a node, or one of its devices, on one screen."""

from __future__ import annotations

import click

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
        about = f"involvedObject.kind=NodeDevices,involvedObject.name={node}"
        sections = view.node(item, now, session.listed(objects.EVENTS, fields=about))
    for line in view.lines(sections, now, colours=session.colours):
        session.out(line)
