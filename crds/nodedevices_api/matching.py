"""The test whether a `DeviceMatch` is about a device: one answer for the agent, which offers devices, and for the
operator, which counts them.

`profile` is ignored: it is about parts of a device, which only the agent knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from nodedevices_common.quantity import to_bytes

from nodedevices_api.base import to_dict
from nodedevices_api.sections import DeviceMatch


def matches(
    match: DeviceMatch,
    *,
    vendor: str,
    product_name: str,
    type: str,  # noqa: A002  the contract calls it so
    memory_bytes: int,
    ids: Collection[str],
    near: Collection[str],
    any_case: bool = False,
) -> bool:
    """All that is given must fit. `ids`: of the device, and of the part that is meant. `near`: as `near_types` has it.
    `any_case`: as if upper and lower case were the same, to find a near miss."""

    def fits(text: str, pattern: str) -> bool:
        return fnmatchcase(text.lower(), pattern.lower()) if any_case else fnmatchcase(text, pattern)

    def same(text: str, other: str) -> bool:
        return text.lower() == other.lower() if any_case else text == other

    return (
        (match.vendor is None or same(match.vendor, vendor))
        and (match.type is None or same(match.type, type))
        and (match.product_name is None or fits(product_name, match.product_name))
        and (match.min_memory is None or memory_bytes >= to_bytes(match.min_memory))
        and (match.ids is None or any(same(own, id_) for id_ in match.ids for own in ids))
        and (match.near is None or any(same(near_type, match.near) for near_type in near))
    )


def described(match: DeviceMatch) -> str:
    """Return the match for people: `type gpu, productName NVIDIA H100*`."""
    parts = to_dict(match).items()
    texts = (f"{name} {', '.join(value) if isinstance(value, list) else value}" for name, value in parts)
    return ", ".join(texts) or "any device"


def near_types(devices: Iterable[tuple[str, str, str]]) -> dict[str, frozenset[str]]:
    """Return for each device the types of the others on its PCIe root, by id. `devices`: all that the node lists, as
    id, type and `attributes.pcieRoot`; "" where it has none, and then it is near to nothing."""
    listed = list(devices)
    roots: dict[str, Counter[str]] = {}
    for _, type_, root in listed:
        if root:
            roots.setdefault(root, Counter())[type_] += 1
    return {
        id_: frozenset(other for other, count in roots.get(root, Counter()).items() if count > (other == type_))
        for id_, type_, root in listed
    }
