"""`kubectl nodedevices resume`: what stopped itself goes on, since a person has looked at it."""

from __future__ import annotations

from collections.abc import Callable

import click
from nodedevices_common.errors import InputError, OperationError

from nodedevices_kubectl import options
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import edits, facts, find

LOOKS, LOOK_AGAIN_SECONDS = 20, 0.5  # the operator watches what is stopped, and writes a policy's status once a second


@click.command(short_help="Resume taints and evictions after a mass fault, or a stopped roll-out.")
@click.argument("policy", required=False, default="", shell_complete=options.complete_policies)
@options.dry_run
@options.with_session
def resume(session: Session, *, policy: str, dry_run: bool) -> None:
    """Without a policy: close the circuit breaker, which stops taints and evictions when many nodes fail at once. With
    a policy: continue its roll-out, which stops while a node is worse off.

    \b
    kubectl get devicepolicies            # STOPPED: the breaker; ROLLOUT: Stopped
    kubectl nodedevices resume
    kubectl nodedevices resume share
    """
    if policy:
        _rollout(session, policy, dry_run=dry_run)
    else:
        _actions(session, dry_run=dry_run)


def _actions(session: Session, *, dry_run: bool) -> None:
    from nodedevices_kube.errors import ApiError  # noqa: PLC0415

    from nodedevices_kubectl.api import objects  # noqa: PLC0415

    def stopped() -> edits.Stopped | None:
        return edits.stopped(session.api.list_all(objects.POLICIES)[0])

    found = stopped()
    if found is None:
        session.say("Taints and evictions are not stopped: nothing to do.")
        return
    for message in found.messages:
        session.say(f"They were stopped: {message}")
    namespace, _, name = found.record.partition("/")
    if not name:
        raise InputError("no policy names the record to resume by (status.resumeRecord): follow the message above")
    try:
        session.api.merge(objects.configmap(namespace, name), edits.resume_actions(session.now()), dry_run=dry_run)
    except ApiError as error:
        if error.absent:
            raise InputError(f"the record {found.record} does not exist: follow the message above") from error
        if error.status == 403:
            raise InputError(f"{error}; this needs the right to patch this ConfigMap: docs/security.md") from error
        raise
    if dry_run:
        session.say(f"(dry run) The operator would be asked to resume, by {found.record}.")
        return
    _wait(session, lambda: again.why if (again := stopped()) else "")
    session.say("Taints and evictions are resumed; the present faults do not stop them again.")


def _rollout(session: Session, name: str, *, dry_run: bool) -> None:
    from nodedevices_kubectl.api import objects  # noqa: PLC0415

    path = objects.at(objects.POLICIES, name)
    found = session.api.find(path)
    if found is None:
        raise find.unknown_policy(name, session.api.names(objects.POLICIES))
    edit = edits.resume_rollout(found)
    if edit.patch is not None:
        session.api.merge(path, edit.patch, dry_run=dry_run)
    for line in edit.said:
        session.say(f"(dry run) {line}" if dry_run and edit.patch is not None else line)
    if edit.patch is None or dry_run:
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
