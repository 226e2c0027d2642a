"""The annotation by which people confirm something: what it says, to whom, and how an entry is added."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st
from nodedevices_api.bounds import DEVICE_ID_PATTERN, MAX_DEVICE_ID
from nodedevices_common.confirming import (
    ACTIONS_RESUMED,
    ALL_REMOVED,
    CONFIG_ACCEPTED,
    EVERY,
    MAX_ENTRIES,
    OF_NODE,
    OF_POLICY,
    OF_RECORD,
    RECOVERED,
    REMOVED,
    ROLLOUT_RESUMED,
    Entry,
    read,
    says,
    split,
    with_entries,
)
from support.cases import cases

AT = "2026-11-23T12:00:00Z"
TIME = "<RFC 3339 time with a zone>"
ids = st.from_regex(DEVICE_ID_PATTERN, fullmatch=True).filter(lambda text: len(text) <= MAX_DEVICE_ID)
words = st.text(max_size=300) | st.from_regex(r"[a-z*=@, ]*", fullmatch=True)


@cases(
    ("value", "entries"),
    ("", []),
    (" , ,", []),
    (f"GPU-1=recovered@{AT}", [("GPU-1", "recovered", AT)]),
    (f" GPU-1=removed@{AT} , *=removed@{AT},", [("GPU-1", "removed", AT), (EVERY, "removed", AT)]),
    ("GPU-1=removed@2026-11-23T12:00:00.123456+01:00", [("GPU-1", "removed", "2026-11-23T12:00:00.123456+01:00")]),
    ("config=accepted@0ab9", [("config", "accepted", "0ab9")]),
    (f"config=removed@{AT}", [("config", "removed", AT)]),  # a device may be called so
    (f"0000:1b:00.0_a-B=recovered@{AT}", [("0000:1b:00.0_a-B", "recovered", AT)]),
)
def test_an_entry_says_what_is_answered(value: str, entries: list[tuple[str, str, str]]) -> None:
    assert read(value, OF_NODE) == (entries, [])


def test_each_object_has_entries_of_its_own_found_as_they_are_written() -> None:
    assert read("rollout=resumed@3", OF_POLICY) == ([Entry("rollout", "resumed", "3")], [])
    assert read(f"actions=resumed@{AT}", OF_RECORD) == ([Entry("actions", "resumed", AT)], [])
    assert read("rollout=resumed@3", OF_RECORD)[1] == [f"rollout=resumed@3: give actions=resumed@{TIME}"]
    assert read(f"GPU-1=removed@{AT}", OF_POLICY)[1] == [
        f"GPU-1=removed@{AT}: give rollout=resumed@<metadata.generation>"
    ]
    value = "GPU-1=removed, config=accepted@ab ,rollout=resumed@3"
    assert says(value, CONFIG_ACCEPTED, "ab")
    assert says(value, ROLLOUT_RESUMED, "3")
    assert not says(value, CONFIG_ACCEPTED, "a")
    assert not says("config=accepted@", CONFIG_ACCEPTED, "")
    assert not says(value, ACTIONS_RESUMED, AT)


@cases(
    ("entry", "right"),
    ("GPU-1=recovered", f"GPU-1=recovered@{TIME}"),
    ("GPU-1=recovered@", f"GPU-1=recovered@{TIME}"),
    ("GPU-1=recovered@now", f"GPU-1=recovered@{TIME}"),
    ("GPU-1=recovered@2026-11-23T12:00:00", f"GPU-1=recovered@{TIME}"),
    (f"GPU-1=recovered@{AT}@{AT}", f"GPU-1=recovered@{TIME}"),
    (f"GPU-1=removed@{AT}=x", f"GPU-1=removed@{TIME}"),
    ("*=removed", f"*=removed@{TIME}"),
    ("config=accepted", "config=accepted@<spec.configHash>"),
    ("config=accepted@a b", "config=accepted@<spec.configHash>"),
    (f"config=accepted@{'a' * 65}", "config=accepted@<spec.configHash>"),
)
def test_an_entry_that_does_not_say_what_it_answers_is_named_with_what_would_be_right(entry: str, right: str) -> None:
    assert read(entry, OF_NODE) == ([], [f"{entry[:119] + '…' if len(entry) > 120 else entry}: give {right}"])


@cases(
    "entry",
    "x",
    "=",
    "@",
    f"=recovered@{AT}",
    f"*=recovered@{AT}",
    f"GPU-1=fine@{AT}",
    f"GPU-1@{AT}",
    f"a=b=removed@{AT}",
)
def test_an_unknown_subject_or_answer_is_named_with_all_that_there_are(entry: str) -> None:
    entries, (problem,) = read(entry, OF_NODE)
    assert entries == []
    assert problem == f"{entry}: give {' or '.join(map(str, OF_NODE))}"


@cases("what", "-1", "1.0", "٣", "03", "0", "", "9" * 65, "1_0")
def test_a_generation_is_a_number_as_the_api_server_writes_it(what: str) -> None:
    entries, problems = read(f"rollout=resumed@{what}", OF_POLICY)
    assert (entries, len(problems)) == ([], 1)


def test_hostile_entries_are_shown_short_and_of_too_many_the_rest_is_counted() -> None:
    _, (problem,) = read("\x1b[2J\n" + "x" * 9000, OF_RECORD)
    assert problem.startswith(r"\x1b[2J\nxxx")
    assert len(problem) < 200
    assert problem.isprintable()
    value = ",".join(f"GPU-{index}=removed@{AT}" for index in range(MAX_ENTRIES))
    assert (len(read(value, OF_NODE)[0]), read(value, OF_NODE)[1]) == (MAX_ENTRIES, [])
    entries, problems = read(f"{value},GPU-x=removed@{AT},", OF_NODE)
    assert len(entries) == MAX_ENTRIES
    assert problems == ["129 entries: only the first 128 count; remove some"]


def test_what_was_acted_on_is_left_out_right_or_wrong() -> None:
    before = f"GPU-1=removed, GPU-2=removed@{AT}"
    assert read(f"GPU-2=removed@{AT},GPU-1=removed", OF_NODE, done=before) == ([], [])
    assert read(f"GPU-2=removed@{AT},GPU-3=removed@{AT}", OF_NODE, done=before)[0] == [Entry("GPU-3", "removed", AT)]


def test_who_adds_an_entry_keeps_those_about_other_subjects() -> None:
    value = f"GPU-1=removed@{AT}, GPU-2=recovered ,x,config=accepted@ab"
    assert with_entries(value, REMOVED.entry(AT, "GPU-2")) == (
        f"GPU-2=removed@{AT},GPU-1=removed@{AT},x,config=accepted@ab"
    )
    assert with_entries("", ALL_REMOVED.entry(AT)) == f"*=removed@{AT}"
    full = with_entries(",".join(f"x{index}" for index in range(200)), "config=accepted@ab")
    assert len(split(full)) == MAX_ENTRIES
    assert full.startswith("config=accepted@ab,x0,")


@given(ids, st.sampled_from([RECOVERED, REMOVED]))
def test_every_device_can_be_confirmed_by_its_id(id_: str, form: object) -> None:
    assert form in OF_NODE
    word = (RECOVERED if form is RECOVERED else REMOVED).entry(AT, id_)
    ((entry,), problems) = read(word, OF_NODE)
    assert (entry.subject, str(entry), problems) == (id_, word, [])


@given(words, words)
def test_whatever_is_written_is_understood_or_named(value: str, done: str) -> None:
    entries, problems = read(value, OF_NODE, done=done)
    known = set(split(done))
    new = [word for word in split(value) if word not in known]
    assert len(entries) + len(problems) == len(new) + (len(re.findall("[^,]+", value)) > MAX_ENTRIES)
    assert set(map(str, entries)) <= set(new)
    assert all(problem.isprintable() and len(problem) < 400 for problem in problems)
