"""`kubectl nodedevices confirm`: a person says what no program can see."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw

from nodedevices_kubectl import editing, options
from nodedevices_kubectl.session import PROGRAM, Session
from nodedevices_kubectl.views import edits


@click.command(short_help="Confirm that a device was repaired, or removed from the machine.")
@click.argument("devices", metavar="NODE/DEVICE...", nargs=-1, required=True, shell_complete=options.complete_devices)
@click.argument("outcome", metavar="{recovered|removed}", type=click.Choice(edits.OUTCOMES))
@options.dry_run
@options.with_session
def confirm(session: Session, *, devices: tuple[str, ...], outcome: str, dry_run: bool) -> None:
    """Confirm that a device was repaired (recovered), or that a Missing device was removed (removed). NODE/* means
    everything that is missing, also devices that only the condition ExpectedDevices names. A confirmation replaces the
    repair and the rest of the hold-down; it does not override evidence.

    \b
    kubectl nodedevices confirm n1/gpu-2 recovered
    kubectl nodedevices confirm n1/GPU-1a2b3c4d removed
    kubectl nodedevices confirm 'n1/*' removed
    """

    def decide(item: Raw, names: list[str]) -> edits.Edit:
        return edits.confirm(item, names, outcome, session.now(), program=PROGRAM)

    editing.change(session, editing.by_node(devices), decide, dry_run=dry_run)
