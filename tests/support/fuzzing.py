"""How many examples a property test draws: few at each run of the tests, `FUZZ_TIMES` as many in `make fuzz`."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("FUZZ_TIMES") or 1)


def scaled(examples: int) -> int:
    """For a test that says how many it needs; others have hypothesis' 100."""
    return examples * TIMES
