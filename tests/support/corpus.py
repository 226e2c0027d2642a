"""Bytes that nobody should have sent, for hypothesis: files of tests/corpus, whole and changed in a few places.

tests/corpus/<what reads it>/ has real files, from which the changes start, and each file that once did harm, named
after what it did (found-...). All are read at every run; the changed ones are drawn.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from support.odd_json import JSON, places, with_value

MOST_OF_ERROR = 16 << 10
MOST_BYTES = 20_000  # of a changed file, which hypothesis has to show
CORPUS = Path(__file__).parents[1] / "corpus"
# Words that a person or a broken program could write in place of another, in YAML or JSON.
ODD_WORDS = [
    *("null", "true", "0", "-1", "1.5", "1e400", "NaN", "-Infinity", ".inf", ".nan", "99999999999", "9" * 5000),
    *("[]", "{}", '""', "''", "'\\0'", r'"\ud800"', r'"\u0000"', r'"\u202e"', "[[[[[]]]]]", '{"a": {"b": {"c": 1}}}'),
    *(
        "~",
        "a",
        "=",
        "<<",
        "*x",
        "&x 1",
        "1:1",
        "1:" * 3000 + "1",
        "0x" + "f" * 4000,
        "0b" + "1" * 9000,
        "0o7",
        "1_000",
    ),
    *(
        "2001-01-01",
        "2001-99-99",
        "2001-01-01 00:00:00 +99:99",
        "!!binary aGVsbG8=",
        "!!set {a: null}",
        "!!omap [a: 1]",
    ),
    *("? [a, b]\n: c", "!!python/object:os.system x", "!!timestamp x", "!!int x", "!!bool x", "!!float x", "'{{id}}'"),
    *("'{{'", "'%s'", "'$(X)'", f"'{'x' * 5000}'", '"' + "a" * 300 + '"', "[" * 3000, "{{{{"),
]
ODD_CHARACTERS = [*"[]{},:&*#!|>'\"%@`\\\n\r\t 0-", "\x00", "\x1b", "\x85", "\u2028", "\ufeff", "é", "\U0001f600"]
ODD_BYTES = [b"\xff", b"\x80", b"\xc3(", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x00", b""]
_WORD = re.compile(rb"[A-Za-z0-9_./*:'\"-]+")


def examples(what: str) -> list[bytes]:
    """The files of a folder, those that did harm among them."""
    found = [path.read_bytes() for path in sorted((CORPUS / what).iterdir())]
    assert found, f"tests/corpus/{what} is empty"
    return found


def sentence(error: Exception) -> None:
    """What was refused is said in a text that any log and any condition can have."""
    assert str(error)
    assert str(error).isprintable()
    assert len(str(error)) < MOST_OF_ERROR


def recorded(what: str) -> pytest.MarkDecorator:
    """A test's parameter `path`: each file of the folder."""
    return pytest.mark.parametrize("path", sorted((CORPUS / what).iterdir()), ids=lambda path: path.name)


@st.composite
def changed(draw: st.DrawFn, what: str) -> bytes:
    """A file of the folder, changed in one to three places of its text."""
    raw = draw(st.sampled_from(examples(what)))
    for _ in range(draw(st.integers(1, 3))):
        words = [match.span() for match in _WORD.finditer(raw)] or [(0, len(raw))]
        first, last = words[draw(st.integers(0, len(words) - 1))]
        match draw(st.integers(0, 6)):
            case 0 | 1:
                raw = raw[:first] + draw(st.sampled_from(ODD_WORDS)).encode() + raw[last:]
            case 2:
                raw = raw[:first] + raw[last:]
            case 3:
                raw = raw[:first] + raw[first:last] * draw(st.sampled_from([2, 50])) + raw[last:]
            case 4:
                raw = raw[:first] + draw(st.sampled_from(ODD_CHARACTERS)).encode() + raw[first:]
            case 5:
                raw = raw[:first] + draw(st.sampled_from(ODD_BYTES)) + raw[last:]
            case _:
                raw = draw(st.sampled_from([raw[:first], raw[first:], raw + raw[first:], b"\xef\xbb\xbf" + raw]))
    return raw[:MOST_BYTES]


@st.composite
def changed_json(draw: st.DrawFn, what: str) -> bytes:
    """A JSON file of the folder with another value at one to three places, keys left out or there twice."""
    document = draw(st.sampled_from([each for each in map(_read, examples(what)) if each is not None]))
    for _ in range(draw(st.integers(1, 3))):
        found = [each for each in places(document) if each]
        if not found:
            break
        path = draw(st.sampled_from(found))
        document = with_value(document, path, draw(JSON | st.sampled_from([_Left, _Twice, _Deep])))
    return _dumped(document).encode("utf-8", "surrogatepass")


class _Left:
    """In place of a value: its key is left out."""


class _Twice:
    """The key is given twice."""


class _Deep:
    """Nested deeply."""


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _dumped(value: Any) -> str:
    if isinstance(value, dict):
        parts = []
        for key, inner in value.items():
            if inner is not _Left:
                parts += [f"{json.dumps(key)}:{_dumped(inner)}"] * (2 if inner is _Twice else 1)
        return "{" + ",".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_dumped(each) for each in value if each is not _Left) + "]"
    if value is _Deep:
        return '{"a":' * 400 + "1" + "}" * 400
    return "null" if value in (_Left, _Twice) else json.dumps(value)
