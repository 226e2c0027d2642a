"""Regular expressions from configuration files, of which a search takes a bounded time.

Go's search in linear time (RE2). Python's may try exponentially many ways, and what a file selects is decided on the
event loop that answers the kubelet. So an expression with many ways is refused: more than MAX_CHOICES, or a
repeated group. In the 16 characters of a name, what is left takes two microseconds as people write them, and 50
milliseconds at worst.

Understood is what Go and Python write alike: characters, `.`, classes, `\\d \\w \\s` and their opposites, `^ $`,
groups, alternatives, `* + ? {m,n}`. All else is refused in words.
"""

from __future__ import annotations

import re
import warnings

from nodedevices_common.errors import InputError

MAX_CHOICES = 6  # repetitions, and alternatives within groups
_TIMES = r"[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\}"
# The last three take what is incomplete, which Python's compiler then refuses.
_PART = re.compile(rf"(?P<times>(?:{_TIMES})\??)|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?.|\{{,|.", re.DOTALL)
_ESCAPED = re.compile(r"\\([^\W_])", re.ASCII)


class ExpressionError(InputError):
    """An error in an expression; the text says which."""


def parse(text: str) -> re.Pattern[str]:
    """Compile an expression whose search in a short name is quick. Raises ExpressionError."""
    choices = depth = 0
    before: re.Match[str] | None = None
    for part in _PART.finditer(text):
        written = part.group()
        if part["times"] is not None:
            if before is not None and before["times"] is not None:
                raise ExpressionError(f"a repetition of a repetition at {part.start() + 1}")
            if before is not None and before.group() == ")" and not written.startswith("?"):
                raise ExpressionError(f"{written} at {part.start() + 1} repeats a group; only ? may follow one")
        _understood(written, part.start() + 1)
        depth += (written in {"(", "(?:"}) - (written == ")")
        choices += part["times"] is not None or (written == "|" and depth > 0)
        before = part
    if choices > MAX_CHOICES:
        raise ExpressionError(
            f"{choices} repetitions and alternatives in groups, more than {MAX_CHOICES}; list the names"
        )
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of sets in sets, which Go has not
            return re.compile(text, re.ASCII)
    except re.error as error:
        raise ExpressionError(str(error)) from None


def _understood(part: str, position: int) -> None:
    """Raise ExpressionError for what Go or Python does not have."""
    if part.startswith("(?") and part != "(?:":
        raise ExpressionError(f"(? at {position}: of these only (?: is understood")
    if part == "{,":
        raise ExpressionError(f"{{, at {position}: Go repeats nothing by it; write {{0,")
    if part.startswith("[") and "[:" in part:
        raise ExpressionError("classes such as [:digit:] are not understood; write 0-9")
    if part.startswith(("[", "\\")):
        for escaped in _ESCAPED.findall(part):
            if escaped.lower() not in "dws":
                raise ExpressionError(f"\\{escaped} is not understood")
