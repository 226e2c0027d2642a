"""The test whether a `DeviceMatch` is about a device: one answer for the agent, which offers devices, and for the
operator, which counts them. What only an `OfferMatch` has, only the agent knows (offering.resources).
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from nodedevices_api.base import to_dict
from nodedevices_api.sections import DeviceMatch


def matches(
    match: DeviceMatch,
    *,
    product_name: str,
    type: str,  # noqa: A002  the contract calls it so
    ids: Collection[str],
    any_case: bool = False,
) -> bool:
    """All that is given must fit. `ids`: of the device, and of the part that is meant. `any_case`: as if upper and
    lower case were the same, to find a near miss."""
    return (
        (match.type is None or same(match.type, type, any_case=any_case))
        and (match.product_name is None or fits(product_name, match.product_name, any_case=any_case))
        and (match.ids is None or any(same(own, id_, any_case=any_case) for id_ in match.ids for own in ids))
    )


def fits(text: str, pattern: str, *, any_case: bool) -> bool:
    return fnmatchcase(text.lower(), pattern.lower()) if any_case else fnmatchcase(text, pattern)


def same(text: str, other: str, *, any_case: bool) -> bool:
    return text.lower() == other.lower() if any_case else text == other


def described(match: DeviceMatch) -> str:
    """Return the match for people: `type gpu, productName NVIDIA H100*`."""
    parts = to_dict(match).items()
    texts = (f"{name} {', '.join(value) if isinstance(value, list) else value}" for name, value in parts)
    return ", ".join(texts) or "any device"
