"""Cases whose feature is not implemented yet, with what is missing. Each of them must fail: the list only shrinks."""

from __future__ import annotations

from collections.abc import Mapping

PENDING: Mapping[str, str] = {}
