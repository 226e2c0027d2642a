"""`kubectl nodedevices support`: what somebody who helps needs to see, in one file."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from nodedevices_common import __version__
from nodedevices_common.errors import InputError
from nodedevices_common.raw import Raw
from nodedevices_common.times import rfc3339
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.commands import check
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import bundle, check as view

OWNER_ONLY = 0o600


@click.command(short_help="Write a support bundle: a file for those who help you, without secrets.")
@click.option("-f", "--file", metavar="FILE", default="", help="Default: nodedevices-support-TIME.tar.gz here.")
@options.system_namespace("agent and operator")
@options.with_session
def support(session: Session, *, file: str, system_namespace: str) -> None:
    """Write a file for those who help you: NodeDevices, policies, Nodes, our pods, Events, the operator's Lease,
    and what `check` says. It reads no Secrets, ConfigMaps or logs, and takes only known fields of objects: no command
    lines, values of environment variables, or annotations of others. The file has names of nodes, pods and
    namespaces.

    \b
    kubectl nodedevices support
    kubectl nodedevices support -f bundle.tar.gz
    """
    now = session.now()
    path = Path(file or f"nodedevices-support-{now:%Y%m%d-%H%M%S}.tar.gz")
    if path.exists():
        raise InputError(f"{path}: this file exists already; give another one with -f")
    content = bundle.files(_read(session, system_namespace), rfc3339(now))
    packed = _packed(content, path.name.removesuffix(".tar.gz"), int(now.timestamp()))
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "wb") as opened:
            opened.write(packed)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give another -f") from error
    for line in content["README.txt"].decode().splitlines()[2:]:
        session.say(line)
    session.say(f"Written: {path} ({len(packed) >> 10} KiB). Read it before you send it to others.")


def _read(session: Session, namespace: str) -> dict[str, Sequence[Raw] | str]:
    """Each part, or why it cannot be read."""

    def attempt(collection: str, kind: str, fields: str = "", selector: str = "") -> Sequence[Raw] | str:
        try:  # objects of a list have no kind of their own; with it `policy dry-run --from` reads them
            items, _ = session.api.list_all(collection, fields=fields, selector=selector)
            return [{"kind": kind, **item} for item in items]
        except ApiError as error:
            if not error.status:  # nobody answers: the next question would not be answered either
                raise
            return str(error)

    parts: dict[str, Sequence[Raw] | str] = {
        "nodedevices": attempt(objects.NODE_DEVICES, "NodeDevices"),
        "devicepolicies": attempt(objects.POLICIES, "DevicePolicy"),
        "nodes": attempt(objects.NODES, "Node"),
        "pods": attempt(objects.pods(namespace), "Pod", selector="app.kubernetes.io/name=nodedevices"),
        "events": attempt(objects.EVENTS, "Event", "involvedObject.kind=NodeDevices"),
    }
    try:
        parts["versions"] = [{"client": __version__}, session.api.get("/version")]
        lease = check.lease_of(session, namespace)
        parts["lease"] = [lease] if lease else "there is none, or you may not read it"
        parts["check"] = _check(session, parts, lease)
    except ApiError as error:
        parts["check"] = str(error)
    return parts


def _check(session: Session, parts: Mapping[str, Sequence[Raw] | str], lease: Raw | None) -> Sequence[Raw] | str:
    """What `check` says of what was read; a text: why it cannot say anything."""
    items, nodes, policies = (parts[name] for name in ("nodedevices", "nodes", "devicepolicies"))
    if isinstance(items, str):
        return items
    seen = view.Seen(
        items,
        check.by_name(None if isinstance(nodes, str) else nodes),
        whole=True,
        policies=None if isinstance(policies, str) else policies,
        lease=lease,
        claims=check.claims_of(session, items),
    )
    return [row.fields for row in view.judge(seen, session.now())]


def _packed(content: dict[str, bytes], folder: str, seconds: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in content.items():
            about = tarfile.TarInfo(f"{folder}/{name}")
            about.size, about.mtime, about.mode = len(data), seconds, OWNER_ONLY
            archive.addfile(about, io.BytesIO(data))
    return buffer.getvalue()
