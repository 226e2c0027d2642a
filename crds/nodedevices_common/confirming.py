"""What people confirm: one annotation, on the object that it is about. A list of `SUBJECT=ANSWER@WHAT`, with commas.

WHAT names what is answered: a time, a configuration, a generation. So an entry that stays answers nothing new, and
whoever adds one keeps those of others. No device's id has `=`, `@`, `,` or `*`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from nodedevices_common.text import clip, printable
from nodedevices_common.times import zoned_time

CONFIRM: Final = "nodedevices.io/confirm"
EVERY: Final = "*"  # all devices that are not on the node
MAX_ENTRIES: Final = 128
MAX_SHOWN = 120  # characters of an entry in a message; a device's id has 96 at most
MAX_WHAT = 64  # characters: a hash
NAMED: Final = 3  # entries that are wrong, in one message
_DEVICE = "<device id>"


class Entry(NamedTuple):
    subject: str
    answer: str
    what: str

    def __str__(self) -> str:
        return f"{self.subject}={self.answer}@{self.what}"


class Form(NamedTuple):
    """A kind of entry. `fits`: whether WHAT is of its kind; `shown`: that kind, for people."""

    subject: str
    answer: str
    fits: Callable[[str], bool]
    shown: str

    def __str__(self) -> str:
        return self.about(self.subject)

    def about(self, subject: str) -> str:
        return f"{subject}={self.answer}@<{self.shown}>"

    def entry(self, what: str, subject: str = "") -> str:
        return str(Entry(subject or self.subject, self.answer, what))


def _is_time(text: str) -> bool:
    return zoned_time(text) is not None


_TIME = "RFC 3339 time with a zone"
RECOVERED = Form(_DEVICE, "recovered", _is_time, _TIME)
REMOVED = Form(_DEVICE, "removed", _is_time, _TIME)
ALL_REMOVED = Form(EVERY, "removed", _is_time, _TIME)
CONFIG_ACCEPTED = Form("config", "accepted", str.isalnum, "spec.configHash")
ROLLOUT_RESUMED = Form(
    "rollout",
    "resumed",
    lambda text: text.isascii() and text.isdecimal() and text[0] != "0",
    "metadata.generation",
)
ACTIONS_RESUMED = Form("actions", "resumed", _is_time, _TIME)

OF_NODE = (RECOVERED, REMOVED, ALL_REMOVED, CONFIG_ACCEPTED)  # on a NodeDevices
OF_POLICY = (ROLLOUT_RESUMED,)  # on a DevicePolicy
OF_RECORD = (ACTIONS_RESUMED,)  # on the ConfigMap that records actions


def read(value: str, forms: Sequence[Form], *, done: str = "") -> tuple[list[Entry], list[str]]:
    """Return the entries of these forms, and what is wrong with the others. Those that `done`, an earlier value, has as
    well were acted on, and are left out."""
    words, before = _words(value), set(split(done))
    entries, problems = [], []
    for word in words[:MAX_ENTRIES]:
        if word in before:
            continue
        entry = _entry(word)
        form = next((form for form in forms if _is_of(entry, form)), None)
        shown = clip(printable(word), MAX_SHOWN)
        if form is None:
            problems.append(f"{shown}: give {' or '.join(map(str, forms))}")
        elif len(entry.what) > MAX_WHAT or not form.fits(entry.what):
            problems.append(f"{shown}: give {form.about(clip(printable(entry.subject), MAX_SHOWN))}")
        else:
            entries.append(entry)
    if len(words) > MAX_ENTRIES:
        problems.append(f"{len(words)} entries: only the first {MAX_ENTRIES} count; remove some")
    return entries, problems


def says(value: str, form: Form, what: str) -> bool:
    """True when it has the entry of this form, which has no subject of its own, about `what`."""
    return bool(value and what) and form.entry(what) in split(value)


def split(value: str) -> list[str]:
    """Return the entries, as they are written."""
    return _words(value)[:MAX_ENTRIES]


def with_entries(value: str, *new: str) -> str:
    """Return the value with these entries in the place of those of the same subjects. The others stay."""
    subjects = {_entry(word).subject for word in new}
    return ",".join([*new, *(word for word in split(value) if _entry(word).subject not in subjects)][:MAX_ENTRIES])


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _entry(word: str) -> Entry:
    subject, _, said = word.partition("=")
    answer, _, what = said.partition("@")
    return Entry(subject, answer, what)


def _is_of(entry: Entry, form: Form) -> bool:
    is_subject = entry.subject not in {"", EVERY} if form.subject == _DEVICE else entry.subject == form.subject
    return is_subject and entry.answer == form.answer
