"""The most devices of one product that a node has had at one time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MostSeen:
    """`probe`: the name of the probe that listed them."""

    probe: str
    vendor: str
    product_name: str
    count: int
