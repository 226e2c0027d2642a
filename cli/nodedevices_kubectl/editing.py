"""What the commands have in common that write an object: read, decide, write; and again where somebody else wrote
in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodedevices_common.raw import Raw, mapping, text
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts, find
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
        _change_node(session, items[node], devices, decide, dry_run=dry_run)


def _change_node(
    session: Session, item: Raw, devices: list[str], decide: Callable[[Raw, list[str]], Edit], *, dry_run: bool
) -> None:
    path = objects.at(objects.NODE_DEVICES, facts.name_of(item))
    write(session, path, item, lambda each: decide(each, devices), dry_run=dry_run)


def write(session: Session, path: str, item: Raw, decide: Callable[[Raw], Edit], *, dry_run: bool) -> bool:
    """Write what is decided about an object, and say it. False: there was nothing to write."""
    for left in reversed(range(ATTEMPTS)):
        edit = decide(item)
        if edit.patch is None:
            break
        try:
            session.api.merge(path, edit.patch, dry_run=dry_run)
            break
        except ApiError as error:
            if error.status != _CONFLICT or not left:
                raise
        item = session.api.get(path)
    for line in edit.said:
        session.say(f"(dry run) {line}" if dry_run else line)
    return edit.patch is not None


def who(session: Session) -> str:
    """The user's name, as the API server knows it; empty where it does not say."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        status = mapping(session.api.create(_REVIEWS, review).get("status"))
    except ApiError:
        return ""
    return text(mapping(status.get("userInfo")).get("username"))
