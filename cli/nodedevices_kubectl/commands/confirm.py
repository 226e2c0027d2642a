"""`kubectl nodedevices confirm`: a person says what no program can see."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw

from nodedevices_kubectl import editing, options
from nodedevices_kubectl.session import PROGRAM, Session
from nodedevices_kubectl.views import edits


@click.command(short_help="Say that a device was repaired, or taken out of the machine.")
@click.argument("devices", metavar="NODE/DEVICE...", nargs=-1, required=True, shell_complete=options.complete_devices)
@click.argument("outcome", metavar="{recovered|removed}", type=click.Choice(edits.OUTCOMES))
@options.dry_run
@options.with_session
def confirm(session: Session, *, devices: tuple[str, ...], outcome: str, dry_run: bool) -> None:
    """Say that a device was repaired (recovered), or that one that is Missing was taken out (removed); NODE/* is all
    that is not there, also what only the condition ExpectedDevices names. It takes the place of the repair and of the
    rest of the hold-down; it does not override evidence.

    \b
    kubectl nodedevices confirm n1/gpu-2 recovered
    kubectl nodedevices confirm n1/GPU-1a2b3c4d removed
    kubectl nodedevices confirm 'n1/*' removed
    """

    def decide(item: Raw, names: list[str]) -> edits.Edit:
        return edits.confirm(item, names, outcome, session.now(), program=PROGRAM)

    editing.change(session, editing.by_node(devices), decide, dry_run=dry_run)
