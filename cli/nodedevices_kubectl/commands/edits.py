"""The commands that write an object: a device out of service as kubectl cordon does it with a node, and back; what a
person says that no program can see, and that what stopped itself goes on.

Each reads, decides, writes; and again where somebody else wrote in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import click
from nodedevices_common.errors import InputError, OperationError
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.session import PROGRAM, Session
from nodedevices_kubectl.views import edits, facts, find

ATTEMPTS = 5
LOOKS, LOOK_AGAIN_SECONDS = 20, 0.5  # the operator watches what is stopped, and writes a policy's status once a second


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
    why = (reason or "").strip()
    if reason is not None and not 1 <= len(why) <= edits.MAX_REASON:
        raise click.UsageError(f"--reason: {len(why)} characters; give 1 to {edits.MAX_REASON}")
    now = session.now()
    try:
        end = edits.moment(until, now) if until else ""
    except ValueError as error:
        raise click.UsageError(f"--until: {error}") from error
    nodes = _by_node(devices)
    _change(session, nodes, partial(edits.cordon, reason=why, until=end, by=_who(session), now=now), dry_run=dry_run)


@click.command(short_help="Take a device back into service.")
@click.argument("devices", metavar="NODE/DEVICE...", nargs=-1, required=True, shell_complete=options.complete_devices)
@options.dry_run
@options.with_session
def uncordon(session: Session, *, devices: tuple[str, ...], dry_run: bool) -> None:
    """Put devices back into service that a person took out. Name a device that its node no longer has by its id.

    \b
    kubectl nodedevices uncordon n1/gpu-2
    """
    _change(session, _by_node(devices), edits.uncordon, dry_run=dry_run)


@click.command(short_help="Confirm a repair, a removal, or that what stopped itself goes on.")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True, shell_complete=options.complete_confirmable)
@click.argument("outcome", metavar=f"{{{'|'.join(edits.OUTCOMES)}}}", type=click.Choice(tuple(edits.OUTCOMES)))
@options.dry_run
@options.with_session
def confirm(session: Session, *, targets: tuple[str, ...], outcome: str, dry_run: bool) -> None:
    """Confirm what no program can see.

    NODE/DEVICE recovered, removed: the device was repaired, or a Missing device was removed. NODE/* means everything
    that is missing, also devices that only the condition ExpectedDevices names. A confirmation replaces the repair and
    the rest of the hold-down; it does not override evidence.

    policy/NAME resumed: its roll-out continues, although a node is worse off. NODE accepted: the node is as it should
    be, and no roll-out waits for it. actions resumed: the circuit breaker closes, which stops taints and evictions when
    many nodes fail at once.

    \b
    kubectl nodedevices confirm n1/gpu-2 recovered
    kubectl nodedevices confirm n1/GPU-1a2b3c4d removed
    kubectl nodedevices confirm 'n1/*' removed
    kubectl nodedevices confirm policy/share resumed
    kubectl nodedevices confirm n1 accepted
    kubectl nodedevices confirm actions resumed
    """
    targets = tuple(dict.fromkeys(targets))
    for target in targets:
        wrong = edits.wrong_pair(target, outcome)
        node = target.partition("/")[0]  # a node may be called `policy` or `actions`
        if wrong and (
            outcome == "resumed"
            or node not in edits.NO_NODES
            or session.api.find(objects.at(objects.NODE_DEVICES, node)) is None
        ):
            raise InputError(wrong)
    if outcome == "resumed":
        for target in targets:
            if target == edits.ACTIONS:
                _actions(session, dry_run=dry_run)
            else:
                _rollout(session, target.removeprefix(edits.POLICY), dry_run=dry_run)
    elif outcome == "accepted":
        for item in [session.node(target) for target in targets]:
            _accept(session, item, dry_run=dry_run)
    else:
        decide = partial(edits.confirm, outcome=outcome, now=session.now())
        _change(session, _by_node(targets), decide, dry_run=dry_run)


def _accept(session: Session, item: Raw, *, dry_run: bool) -> None:
    node = facts.name_of(item)
    path = objects.at(objects.NODE_DEVICES, node)
    if _write(session, path, item, edits.accept, dry_run=dry_run) and not dry_run:
        _wait(session, lambda: edits.still_watched(session.api.get(path), item))
        session.say(f"No roll-out waits for {node}. To see what it has: {PROGRAM} policy explain {node}")


def _actions(session: Session, *, dry_run: bool) -> None:
    def stopped() -> list[Raw]:
        return edits.stopped(session.api.list_all(objects.POLICIES)[0])

    found = stopped()
    if not found:
        session.say("Taints and evictions are not stopped: nothing to do.")
        return
    for message in edits.why_stopped(found):
        session.say(f"They were stopped: {message}")
    place = edits.resume_record(found)
    namespace, _, name = place.partition("/")
    if not name:
        raise InputError("no policy names the record to resume by (status.resumeRecord): follow the message above")
    path = objects.configmap(namespace, name)
    try:
        record = session.api.find(path)
        if record is None:
            raise InputError(f"the record {place} does not exist; the operator makes it again: try again later")
        _write(session, path, record, partial(edits.resume_actions, now=session.now()), dry_run=dry_run)
    except ApiError as error:
        if error.status == 403:
            raise InputError(
                f"{error}; this needs the rights to get and patch this ConfigMap: docs/security.md"
            ) from error
        raise
    if dry_run:
        session.say(f"(dry run) The operator would be asked to resume, by {place}.")
        return
    _wait(
        session, lambda: "; ".join(edits.why_stopped(again) or ["no reason is given"]) if (again := stopped()) else ""
    )
    session.say("Taints and evictions are resumed; the present faults do not stop them again.")


def _rollout(session: Session, name: str, *, dry_run: bool) -> None:
    path = objects.at(objects.POLICIES, name)
    found = session.api.find(path) if name else None
    if found is None:
        raise find.unknown_policy(name, session.api.names(objects.POLICIES))
    if not _write(session, path, found, edits.resume_rollout, dry_run=dry_run) or dry_run:
        return
    _wait(session, lambda: edits.rollout_stopped(session.api.get(path)))
    session.say(f"The roll-out continues. To watch it: kubectl get devicepolicy {facts.name_of(found)} -w")


def _wait(session: Session, stopped: Callable[[], str]) -> None:
    """Return once the operator has acted on what was asked. `stopped`: why it has not; empty: it has."""
    for _ in range(LOOKS):
        if not (why := stopped()):
            return
        session.sleep(LOOK_AGAIN_SECONDS)
    raise OperationError(f"the operator has not acted on the request within {LOOKS * LOOK_AGAIN_SECONDS:g} s: {why}")


# --- reading and writing ---------------------------------------------------------------------------------------------
def _by_node(given: Iterable[str]) -> dict[str, list[str]]:
    """NODE/DEVICE ..., as nodes with their devices, each once."""
    found: dict[str, list[str]] = {}
    for argument in given:
        node, device = find.split(argument)
        if not device:
            raise InputError(f"{argument}: give node and device as NODE/DEVICE, such as n1/gpu-0")
        devices = found.setdefault(node, [])
        if device not in devices:
            devices.append(device)
    return found


def _change(session: Session, nodes: dict[str, list[str]], decide: Callable[..., edits.Edit], *, dry_run: bool) -> None:
    """Write what `decide` makes of each node, and of its devices by that name. Every one is looked up before anything
    is written."""
    items = {node: session.node(node) for node in nodes}
    decisions = {node: partial(decide, devices=devices) for node, devices in nodes.items()}
    for node, decision in decisions.items():
        decision(items[node])
    for node, decision in decisions.items():
        _write(session, objects.at(objects.NODE_DEVICES, node), items[node], decision, dry_run=dry_run)


def _write(session: Session, path: str, item: Raw, decide: Callable[[Raw], edits.Edit], *, dry_run: bool) -> bool:
    """Write what is decided about an object, and say it. False: there was nothing to write."""
    for left in reversed(range(ATTEMPTS)):
        edit = decide(item)
        if edit.patch is None:
            break
        try:
            session.api.merge(path, edit.patch, dry_run=dry_run)
            break
        except ApiError as error:
            if error.status != 409 or not left:
                raise
        item = session.api.get(path)
    for line in edit.said:
        session.say(f"(dry run) {line}" if dry_run else line)
    return edit.patch is not None


def _who(session: Session) -> str:
    """The user's name, as the API server knows it; empty where it does not say."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        status = mapping(session.api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review).get("status"))
    except ApiError:
        return ""
    return text(mapping(status.get("userInfo")).get("username"))
