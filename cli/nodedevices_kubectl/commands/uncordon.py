"""`kubectl nodedevices uncordon`: a device back into service."""

from __future__ import annotations

import click

from nodedevices_kubectl import editing, options
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import edits


@click.command(short_help="Take a device back into service.")
@click.argument("devices", metavar="NODE/DEVICE...", nargs=-1, required=True, shell_complete=options.complete_devices)
@options.dry_run
@options.with_session
def uncordon(session: Session, *, devices: tuple[str, ...], dry_run: bool) -> None:
    """Put devices back into service that a person took out. Name a device that its node no longer has by its id.

    \b
    kubectl nodedevices uncordon n1/gpu-2
    """
    editing.change(session, editing.by_node(devices), edits.uncordon, dry_run=dry_run)
