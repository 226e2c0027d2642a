"""What the commands have in common that write a NodeDevices: read, decide, write; and again where somebody else wrote
in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodedevices_common.raw import Raw, mapping, text

from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import find
from nodedevices_kubectl.views.edits import Edit

ATTEMPTS = 5
_CONFLICT = 409
_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def by_node(given: Iterable[str]) -> dict[str, list[str]]:
    """NODE/DEVICE ..., as nodes with their devices, each once."""
    found: dict[str, list[str]] = {}
    for argument in given:
        node, device = find.split_device(argument)
        devices = found.setdefault(node, [])
        if device not in devices:
            devices.append(device)
    return found


def change(
    session: Session, nodes: dict[str, list[str]], decide: Callable[[Raw, list[str]], Edit], *, dry_run: bool
) -> None:
    """Every node and device is looked up before anything is written."""
    items = {node: session.node(node) for node in nodes}
    for node, devices in nodes.items():
        decide(items[node], devices)
    for node, devices in nodes.items():
        _write(session, node, devices, items[node], decide, dry_run=dry_run)


def _write(
    session: Session,
    node: str,
    devices: list[str],
    item: Raw,
    decide: Callable[[Raw, list[str]], Edit],
    *,
    dry_run: bool,
) -> None:
    from nodedevices_kube.errors import ApiError  # noqa: PLC0415

    from nodedevices_kubectl.api import objects  # noqa: PLC0415

    for left in reversed(range(ATTEMPTS)):
        edit = decide(item, devices)
        if edit.patch is None:
            break
        try:
            session.api.merge(objects.at(objects.NODE_DEVICES, node), edit.patch, dry_run=dry_run)
            break
        except ApiError as error:
            if error.status != _CONFLICT or not left:
                raise
        item = session.node(node)
    for line in edit.said:
        session.say(f"(dry run) {line}" if dry_run else line)


def who(session: Session) -> str:
    """The user's name, as the API server knows it; empty where it does not say."""
    from nodedevices_kube.errors import ApiError  # noqa: PLC0415

    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        status = mapping(session.api.create(_REVIEWS, review).get("status"))
    except ApiError:
        return ""
    return text(mapping(status.get("userInfo")).get("username"))
