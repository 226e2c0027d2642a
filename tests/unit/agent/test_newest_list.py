"""What each ListAndWatch stream is to send next: the newest list, once."""

from __future__ import annotations

from hypothesis import given, strategies as st
from nodedevices_plugin.kubelet.rpc import NOTHING_SENT, Newest


def read(newest: Newest[bytes], sent: int) -> tuple[list[bytes], int]:
    """What a reader gets that has this version and reads until it has the newest; and the version that it has then."""
    got = []
    while (following := newest.after(sent)) is not None:
        shown, sent = following
        got.append(shown)
    return got, sent


def test_what_is_sent_is_the_newest_and_only_when_it_differs() -> None:
    newest = Newest(b"first")
    _, sent = read(newest, NOTHING_SENT)
    newest.show(b"first")
    assert read(newest, sent)[0] == []
    newest = Newest(b"first")
    _, sent = read(newest, NOTHING_SENT)
    newest.show(b"second")
    newest.show(b"first")
    assert read(newest, sent)[0] == [b"first"]


def test_the_same_list_is_sent_once_more_to_every_reader_that_has_it() -> None:
    newest = Newest(b"first")
    had = [read(newest, NOTHING_SENT)[1] for _ in range(2)]
    newest.show_again()
    assert [read(newest, sent)[0] for sent in had] == [[b"first"], [b"first"]]


@given(st.lists(st.sampled_from(["a", "b", "again", "reader 0", "reader 1"])))
def test_whenever_readers_take_each_has_the_newest_then_and_got_no_list_twice(steps: list[str]) -> None:
    newest, shown = Newest(b"a"), [b"a"]
    had: list[tuple[int, list[bytes]]] = [(NOTHING_SENT, []), (NOTHING_SENT, [])]  # what each was sent
    for step in [*steps, "reader 0", "reader 1"]:
        if step.startswith("reader"):
            sent, before = had[int(step[-1])]
            lists, sent = read(newest, sent)
            had[int(step[-1])] = sent, [*before, *lists]
            assert len(lists) <= 1
            assert [*before, *lists][-1] == shown[-1]
        elif step == "again":
            newest.show_again()
            shown.append(shown[-1])
        elif step.encode() != shown[-1]:
            newest.show(step.encode())
            shown.append(step.encode())
    assert all(len(lists) <= len(shown) for _, lists in had)
