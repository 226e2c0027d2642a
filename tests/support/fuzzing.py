"""How many examples a property test draws: a share of them in `make test`, all of them where `FUZZ_EXAMPLES` is
`full`, and `FUZZ_TIMES` as many in `make fuzz`. The tests say how many all of them are."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("FUZZ_TIMES") or 1)
FULL = "FUZZ_TIMES" in os.environ or os.environ.get("FUZZ_EXAMPLES") == "full"
LEAST = 5


def scaled(examples: int, *, share: int = 3) -> int:
    """For a test that says how many it needs; others have hypothesis' 100. `make test` draws one of `share`."""
    return examples * TIMES if FULL else max(LEAST, examples // share)
