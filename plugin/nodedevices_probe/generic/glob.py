"""Paths with wildcards, as `filepath.Glob` of Go has them: `*`, `?` and `[...]` within a part of a path.

What is found is compared by the rules of `fnmatch`, whose time is bounded; `match_text` then says what the
wildcards stand for.
"""

from __future__ import annotations

import fnmatch
import re

MAX_PATH = 160
MAX_STARS = 3  # in one part of a path
_ALLOWED = re.compile(r"[A-Za-z0-9._:+@=,#~*?\[\]!^-]+")
_BRACKETS = re.compile(r"\[[!^]?[^\[\]]+\]")


def problem_of(path: str) -> str:
    """Return what is wrong with it, as what would be right; "" where nothing is."""
    if not path.startswith("/") or len(path) > MAX_PATH:
        return f"give an absolute path of at most {MAX_PATH} characters"
    for part in path[1:].split("/"):
        if part in {"", ".", ".."}:
            return "give a path without empty parts, . and .."
        if not _ALLOWED.fullmatch(part):
            return "give letters, digits, any of . _ : + @ = , # ~ -, and the wildcards * ? [...]"
        if part.count("*") > MAX_STARS:
            return f"give at most {MAX_STARS} * in a part of a path"
        if set("[]!^") & set(_BRACKETS.sub("", part)):
            return "[...] is not closed, or is empty"
    return ""


def is_pattern(part: str) -> bool:
    return any(char in part for char in "*?[")


def matches(name: str, pattern: str) -> bool:
    """True when a name is one that a part of a path, with wildcards, means."""
    return fnmatch.fnmatchcase(name, pattern.replace("[^", "[!"))


def match_text(path: str, pattern: str) -> str:
    """Return what the wildcards stand for in a path that matches, each as few characters as it can, with hyphens
    between."""
    found: list[str] = []
    for name, part in zip(path.split("/"), pattern.split("/"), strict=False):
        if is_pattern(part):
            try:
                match = re.fullmatch("".join(map(_piece, re.findall(r"\[[!^]?[^\[\]]+\]|.", part))), name)
            except re.error:  # [z-a], which matches nothing
                continue
            found += match.groups() if match is not None else ()
    return "-".join(found)


def _piece(piece: str) -> str:
    """`piece`: a character, a wildcard or a whole [...]."""
    if len(piece) == 1:
        return {"*": "(.*?)", "?": "(.)"}.get(piece, re.escape(piece))
    negated = piece[1] in "!^"
    inner = re.escape(piece[2:-1] if negated else piece[1:-1]).replace(chr(92) + "-", "-")
    return f"([{'^' if negated else ''}{inner}])"
