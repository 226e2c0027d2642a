"""Version numbers in DRA's form: strict semantic versions, three parts without leading zeros.

A driver prints `570.148.08` and a compute capability `9.0`; a ResourceSlice attribute of type version accepts neither
(resource.k8s.io validates with semver 2.0.0), only `570.148.8` and `9.0.0`.
"""

from __future__ import annotations

import re

_PARTS = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?")


def dra_version(text: str) -> str | None:
    """`570.148.08` -> `570.148.8`, `12.8` -> `12.8.0`. None where the text is no dotted number of up to three parts."""
    match = _PARTS.fullmatch(text.strip())
    return None if match is None else ".".join(str(int(part or "0")) for part in match.groups())
