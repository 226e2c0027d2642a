"""Cases whose feature is not at work yet, with what is missing. A case listed here must fail: the list only shrinks."""

from __future__ import annotations

from collections.abc import Mapping

PENDING: Mapping[str, str] = {}
