"""Text from elsewhere, cut to where it goes."""

from __future__ import annotations


def clip(text: str, limit: int) -> str:
    """The text, or as much of it as fits with an ellipsis at its end. `limit` counts characters, as maxLength does."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
