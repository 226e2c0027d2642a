"""Regular expressions from configuration files, searched for in linear time.

Go's always are (RE2); Python's take a time that is exponential in a name's length for `(.|.|.)+X`, and
what a file selects is decided on the event loop that answers the kubelet. So an expression is compiled to a small
machine here, and a search follows all its states at once: states times characters, no more. A library (google-re2)
would be a compiled dependency of every node for the names of interfaces.

Understood is what Go and Python write alike: characters, `.`, classes, `\\d \\w \\s` and their opposites, `^ $`,
groups, alternatives, `* + ? {m,n}`. All else is refused in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nodedevices_common.errors import InputError

MAX_STATES = 512
MAX_DEPTH = 16
MAX_TIMES = 64  # in braces: longer than any name

Fits = Callable[[str], bool]
_DIGIT = "0123456789"
_WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_SETS = {"d": _DIGIT, "w": _WORD, "s": " \t\n\r\f\v"}


class ExpressionError(InputError):
    """An error in an expression; the text says which."""


@dataclass(slots=True)
class _State:
    """One step of the machine. `fits` None: it costs no character; `at`: only there, "start" or "end"."""

    fits: Fits | None = None
    at: str = ""
    to: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Expression:
    """A machine that begins in state 0; the last state is that of a match."""

    states: tuple[_State, ...]

    def search(self, text: str) -> bool:
        """True when some part of the text matches."""
        current: set[int] = set()
        for place in range(len(text) + 1):
            current = self._reached({*current, 0}, start=place == 0, end=place == len(text))
            if len(self.states) - 1 in current:
                return True
            if place < len(text):
                current = {
                    to
                    for each in current
                    if (fits := self.states[each].fits) is not None and fits(text[place])
                    for to in self.states[each].to
                }
        return False

    def _reached(self, states: set[int], *, start: bool, end: bool) -> set[int]:
        """Return these states with all that can be reached from them without a character."""
        found, todo = set(states), list(states)
        while todo:
            state = self.states[todo.pop()]
            if state.fits is not None or (state.at == "start" and not start) or (state.at == "end" and not end):
                continue
            new = [each for each in state.to if each not in found]
            found.update(new)
            todo += new
        return found


def parse(text: str) -> Expression:
    """Raises ExpressionError."""
    return Expression(tuple(_Parser(text).states))


class _Parser:
    """Reads an expression from left to right. Each part becomes states from an entry to an exit."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.states: list[_State] = []
        begin = self._state()
        entry, leave = self._alternatives()
        if self._at < len(text):
            raise ExpressionError(f"unmatched ) at {self._at + 1}")
        self.states[begin].to.append(entry)
        self.states[leave].to.append(self._state())

    def _state(self, fits: Fits | None = None, at: str = "") -> int:
        if len(self.states) >= MAX_STATES:
            raise ExpressionError("too many repetitions")
        self.states.append(_State(fits, at))
        return len(self.states) - 1

    def _one(self, fits: Fits) -> tuple[int, int]:
        entry, leave = self._state(fits), self._state()
        self.states[entry].to.append(leave)
        return entry, leave

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise ExpressionError("it ends too soon")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> tuple[int, int]:
        entry, leave = self._state(), self._state()
        while True:
            first, last = self._sequence()
            self.states[entry].to.append(first)
            self.states[last].to.append(leave)
            if self._peek() != "|":
                return entry, leave
            self._at += 1

    def _sequence(self) -> tuple[int, int]:
        entry = leave = self._state()
        while self._peek() not in {"", "|", ")"}:
            first, last = self._repeated()
            self.states[leave].to.append(first)
            leave = last
        return entry, leave

    def _repeated(self) -> tuple[int, int]:
        began = self._at
        first, last = self._atom()
        after = self._at
        times = self._times()
        if times is None:
            return first, last
        if self._peek() in {"*", "+", "?"} or self._braces(self._at) is not None:
            raise ExpressionError(f"a repetition of a repetition at {self._at + 1}")
        least, most = times
        entry = leave = self._state()
        resume = self._at
        for number in range(max(least, 1) if most is None else most):
            if number:  # once more from the text: each copy has states of its own
                self._at = began
                first, last = self._atom()
                assert self._at == after  # noqa: S101
            self.states[leave].to.append(first)
            if number >= least:
                skip = self._state()
                self.states[leave].to.append(skip)
                self.states[last].to.append(skip)
                last = skip
            leave = last
        if most is None:
            self.states[leave].to.append(first)
        self._at = resume
        return entry, leave

    def _times(self) -> tuple[int, int | None] | None:
        """Read how often at least and at most the last part may occur; None: once."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self._at += 1
        elif (braces := self._braces(self._at)) is not None:
            simple, self._at = braces[0], braces[1]
        else:
            return None
        if self._peek() == "?":  # the shortest one first: found is found
            self._at += 1
        return simple

    def _braces(self, at: int) -> tuple[tuple[int, int | None], int] | None:
        """Read both numbers of `{2,5}` and where it ends; a brace in another form is no repetition."""
        end = self._text.find("}", at)
        if self._text[at : at + 1] != "{" or end < 0:
            return None
        low, comma, high = self._text[at + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        least = int(low)
        most = None if comma and not high else int(high or low)
        if least > MAX_TIMES or (most is not None and not least <= most <= MAX_TIMES):
            raise ExpressionError(
                f"{self._text[at : end + 1]}: give two numbers up to {MAX_TIMES}, the smaller one first"
            )
        return (least, most), end + 1

    def _atom(self) -> tuple[int, int]:
        match character := self._next():
            case "(":
                return self._group()
            case "[":
                return self._one(self._class())
            case ".":
                return self._one(lambda each: each != "\n")
            case "^" | "$":
                entry, leave = self._state(at="start" if character == "^" else "end"), self._state()
                self.states[entry].to.append(leave)
                return entry, leave
            case "*" | "+" | "?":
                raise ExpressionError(f"nothing to repeat at {self._at}")
            case "\\":
                return self._one(self._escaped())
            case _:
                return self._one(lambda each: each == character)

    def _group(self) -> tuple[int, int]:
        if self._peek() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise ExpressionError(f"(? at {self._at}: of these only (?: is understood")
            self._at += 2
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested more than {MAX_DEPTH} deep")
        found = self._alternatives()
        self._depth -= 1
        if self._peek() != ")":
            raise ExpressionError("a ( without )")
        self._at += 1
        return found

    def _escaped(self) -> Fits:
        character = self._next()
        if (known := _SETS.get(character.lower())) is not None:
            return (lambda each: each in known) if character.islower() else (lambda each: each not in known)
        if character.isalnum() or not character.isascii():
            raise ExpressionError(f"\\{character} is not understood")
        return lambda each: each == character

    def _class(self) -> Fits:
        """Up to its ]."""
        opposite = self._peek() == "^"
        self._at += opposite
        parts: list[Fits] = []
        first = True
        while (character := self._next()) != "]" or first:
            first = False
            if character == "[" and self._peek() == ":":
                raise ExpressionError("classes such as [:digit:] are not understood; write 0-9")
            if character == "\\":
                if self._peek().lower() in _SETS:
                    parts.append(self._escaped())
                    continue
                character = self._literal()
            parts.append(self._range(character))
        return lambda each: any(fits(each) for fits in parts) is not opposite

    def _literal(self) -> str:
        character = self._next()
        if character.isalnum():
            raise ExpressionError(f"\\{character} is not understood")
        return character

    def _range(self, low: str) -> Fits:
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in {"]", ""}:
            return lambda each: each == low
        self._at += 1
        high = self._next()
        high = self._literal() if high == "\\" else high
        if high < low:
            raise ExpressionError(f"{low}-{high} is no range")
        return lambda each: low <= each <= high
