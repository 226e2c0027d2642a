"""Which device a person means: `NODE/DEVICE`, the device by name, index, id, or the beginning of its id."""

from __future__ import annotations

from collections.abc import Iterable

from nodedevices_common.errors import InputError
from nodedevices_common.raw import Raw
from nodedevices_common.text import nearest

from nodedevices_kubectl.views import facts

SHORTEST_BEGINNING = 8  # of an id: GPU-1a2b


def split(given: str) -> tuple[str, str]:
    """Return node and device; the device is empty where a node alone was given."""
    node, _, device = given.partition("/")
    if not node:
        raise InputError(f"{given}: give NODE or NODE/DEVICE, such as n1/gpu-0")
    return node, device


def device(item: Raw, wanted: str) -> facts.Unit:
    """The one device or partition that is meant. InputError where it is none or several."""
    node = facts.name_of(item)
    units = list(facts.units(item))
    for matches in (
        [unit for unit in units if wanted in {unit.id, unit.name}],
        [unit for unit in units if not unit.is_partition and str(unit.device.get("index")) == wanted],
        [unit for unit in units if _begins(unit.id, wanted)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            several = ", ".join(f"{unit.name} ({unit.id})" for unit in matches[:8])
            raise InputError(f"{node}/{wanted}: this matches {len(matches)} devices: {several}; give a name or an id")
    known = [unit.name for unit in units]
    if not known:
        raise InputError(f"{node}/{wanted}: node {node} has no devices")
    every = f"; it has {known[0]} to {known[-1]}"
    kinds = {name.rpartition("-")[0] for name in known}
    hint = every if wanted.rpartition("-")[0] in kinds else nearest(wanted, known) or every  # another number is no typo
    raise InputError(f"{node}/{wanted}: node {node} has no such device{hint}")


def by_beginning(wanted: str, ids: Iterable[str]) -> list[str]:
    """Return the id that is meant, or all that begin so."""
    every = list(ids)
    return [wanted] if wanted in every else [id_ for id_ in every if _begins(id_, wanted)]


def _begins(id_: str, wanted: str) -> bool:
    return len(wanted) >= SHORTEST_BEGINNING and id_.startswith(wanted)


def unknown_node(name: str, known: list[str]) -> InputError:
    """Return what to say of a node that has no NodeDevices."""
    hint = nearest(name, known)
    if not hint and known:
        hint = f"; there are {len(known)}: kubectl nodedevices nodes -o name"
    return InputError(f"node {name}: there is no NodeDevices with this name{hint or '; there are none at all'}")


def unknown_policy(name: str, known: list[str]) -> InputError:
    """Return what to say of a DevicePolicy that is not there."""
    hint = nearest(name, known) or "; kubectl get devicepolicies lists them"
    return InputError(f"policy {name}: there is no policy with this name{hint}")
