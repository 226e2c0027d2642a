"""ListAndWatch with many ids: how large its message is, and how long it takes to be there.

Twice: when a kubelet opens the stream, and when one device fails while it listens. The second is measured from the
moment in which the server's process is notified, so it includes encoding the list; nothing is decoded at this end.
"""

from __future__ import annotations

import time

from benchmarks.offer import FLOOR_IS, Offer, serving, timed
from benchmarks.table import Row, percentile

ROUNDS = 300
LARGEST_KIB = 3 * 1024  # a kubelet takes 4 MiB


def measure() -> list[Row]:
    rows = []
    for case, name in (("mig-128", "128 MIG ids"), ("shares-8x64", "8 x 64 shares")):
        with serving(case) as offer:
            rows += listed(offer, name)
    return rows


def listed(offer: Offer, name: str) -> list[Row]:
    floor = timed({"floor": offer.empty()}, rounds=ROUNDS)["floor"]
    opened = [first(offer) for _ in range(ROUNDS)]
    changed, size = changes(offer)
    size_row = Row(
        what=f"{name}, size of a list of {len(offer.ids)}", measured=size / 1024, unit="KiB", target=LARGEST_KIB
    )
    return [
        size_row,
        *(
            Row(
                what=f"{name}, {what}, p{percent}",
                measured=percentile(took, percent),
                unit="ms",
                floor=percentile(floor, percent),
                floor_is=FLOOR_IS,
            )
            for what, took in (("stream opened -> list", opened), ("one device fails -> list", changed))
            for percent in (50, 99)
        ),
    ]


def first(offer: Offer) -> float:
    """Milliseconds until the first message of a new stream is here."""
    began = time.perf_counter()
    watching = offer.watch()
    next(watching)
    took = (time.perf_counter() - began) * 1000
    watching.close()  # type: ignore[attr-defined]  # a generator
    return took


def changes(offer: Offer) -> tuple[list[float], int]:
    """Milliseconds until a change is here, each time, and the bytes of the largest message."""
    watching = offer.watch()
    largest = len(next(watching))
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        offer.change()
        largest = max(largest, len(next(watching)))
        took.append((time.perf_counter() - began) * 1000)
    watching.close()  # type: ignore[attr-defined]
    return took, largest
