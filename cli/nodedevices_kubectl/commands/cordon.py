"""`kubectl nodedevices cordon`: a device out of service, as kubectl cordon does it with a node."""

from __future__ import annotations

import click
from nodedevices_common.raw import Raw

from nodedevices_kubectl import editing, options
from nodedevices_kubectl.session import PROGRAM, Session
from nodedevices_kubectl.views import edits
from nodedevices_kubectl.views.ages import moment


@click.command(short_help="Take a device out of service: no new pod gets it.")
@click.argument("devices", metavar="NODE/DEVICE...", nargs=-1, required=True, shell_complete=options.complete_devices)
@click.option("--reason", metavar="TEXT", default=None, help="Why, such as 'RMA 4711'.")
@click.option(
    "--until", metavar="TIME", default="", help="Back in service by itself then: 2026-12-01T08:00:00Z, or 8h, 3d."
)
@options.dry_run
@options.with_session
def cordon(session: Session, *, devices: tuple[str, ...], reason: str | None, until: str, dry_run: bool) -> None:
    """Take devices out of service. New pods do not get them; pods that hold them keep running, and are not marked. The
    devices stay out of service when the agent or the node restarts. Where another plugin serves the kubelet
    (serving.mode Observe), that plugin still offers them: cordon the node.

    \b
    kubectl nodedevices cordon n1/gpu-2 --reason "RMA 4711"
    kubectl nodedevices cordon n1/0 n1/1 --until 8h
    """
    why = "" if reason is None else reason.strip()
    if reason is not None and not 1 <= len(why) <= edits.MAX_REASON:
        raise click.UsageError(f"--reason: {len(why)} characters; give 1 to {edits.MAX_REASON}")
    now = session.now()
    try:
        end = moment(until, now) if until else ""
    except ValueError as error:
        raise click.UsageError(f"--until: {error}") from error
    nodes = editing.by_node(devices)
    asked = edits.Cordon(reason=why, until=end, by=editing.who(session), now=now)

    def decide(item: Raw, names: list[str]) -> edits.Edit:
        return edits.cordon(item, names, asked, program=PROGRAM)

    editing.change(session, nodes, decide, dry_run=dry_run)
