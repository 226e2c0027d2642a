"""Whether to write colours: https://no-color.org, and never into a file or a pipe unless asked to."""

from __future__ import annotations

from collections.abc import Mapping

CHOICES = ("auto", "always", "never")


def wanted(choice: str, *, terminal: bool, environment: Mapping[str, str]) -> bool:
    if choice != "auto":
        return choice == "always"
    return terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
