"""Whatever is in a file that people or another plugin wrote: it is read, or refused with where and what.

What is read can be saved and comes back the same; what is refused is one text that any log and any condition can show.
The work for both is bounded by the file's size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import given, strategies as st
from nodedevices_api.base import to_dict
from nodedevices_common.errors import InputError
from nodedevices_plugin.settings import file
from nodedevices_plugin.settings.effective import resolve, to_saved
from nodedevices_plugin.settings.file import FileConfig
from nodedevices_plugin.vendors.registry import VENDORS
from nodedevices_probe.simulated import probe as simulated
from nodedevices_probe.simulated.probe import SimulatedState
from support.cases import cases
from support.corpus import CORPUS, changed, sentence
from support.local import at_once, restored

LOCAL = at_once(["--node-name=n1", "--probe=nic", "--probe=fpga"], {})
PARSED: dict[str, Callable[[bytes], object]] = {
    "config-file": file.parse,
    "simulated-file": lambda raw: simulated.parse(raw, node="n1"),
    **{name: file.parse for name, (_, file) in VENDORS.files_by_name().items()},
}
CALLS = 50_000  # of Python functions, whatever the file
CALLS_PER_BYTE = 200


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """Counted work, not time: a busy machine is not a counterexample."""
    left = CALLS + CALLS_PER_BYTE * size

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        left -= event == "call"
        if left < 0:
            sys.setprofile(before)
            raise AssertionError(f"more than {CALLS} calls and {CALLS_PER_BYTE} for each of {size} bytes")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def read(name: str, raw: bytes) -> object:
    """The file's content; None where it was refused."""
    try:
        with bounded(len(raw)):
            return PARSED[name](raw)
    except InputError as error:
        sentence(error)
        return None


def check(name: str, raw: bytes) -> None:
    content = read(name, raw)
    if content is None:
        return
    if isinstance(content, SimulatedState):
        return
    try:
        if isinstance(content, FileConfig):
            effective = resolve(LOCAL, content, None)
        else:
            effective = resolve(LOCAL, None, None, {name: content})
    except InputError as error:
        sentence(error)
        return
    to_dict(effective.sections)
    saved = to_saved(effective)
    assert to_saved(restored(saved)) == saved


@cases(("name", "path"), *[(name, path) for name in PARSED for path in sorted((CORPUS / name).iterdir())])
def test_a_file_of_the_corpus_is_read_or_refused(name: str, path: Path) -> None:
    check(name, path.read_bytes())
    assert path.name.startswith("found-") or read(name, path.read_bytes()) is not None, "a real file is read"


def test_every_file_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.suffix or path.name.endswith("-file")} == set(PARSED)


@given(st.sampled_from(sorted(PARSED)).flatmap(lambda name: st.tuples(st.just(name), changed(name))))
def test_a_changed_file_is_read_or_refused(case: tuple[str, bytes]) -> None:
    check(*case)
