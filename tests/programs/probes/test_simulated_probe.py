"""The simulated probe as a process: edits appear, faults are edges or states, and bad files change nothing."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodedevices_common
import pytest
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.protocol import DriverState, Snapshot
from nodedevices_probe.registry import KINDS
from support.patience import PATIENCE_SECONDS
from support.probes import COMMAND, RunningProbe, device, ended, running


def write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def codes(snapshot: Snapshot) -> list[str]:
    return [problem.code for problem in snapshot.problems]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "devices.yaml"
    write(path, "profile: h100 x 8\n")
    return path


@pytest.fixture
def probe(file: Path) -> Iterator[RunningProbe]:
    with running(["simulated", "--file", str(file), "--node-name", "n"]) as each:
        each.until(lambda seen: seen.devices or seen.problems)
        yield each


def test_devices_come_and_go(file: Path, probe: RunningProbe) -> None:
    write(file, "{profile: h100 x 8, devices: [{index: 5, absent: true}]}")
    probe.until(lambda seen: [each.index for each in seen.devices] == [0, 1, 2, 3, 4, 6, 7])
    write(file, "profile: h100 x 8\n")
    probe.until(lambda seen: len(seen.devices) == 8)


def test_an_event_is_reported_once_and_comes_with_the_state_of_the_same_edit(file: Path, probe: RunningProbe) -> None:
    write(
        file, "{profile: h100 x 8, devices: [{index: 3, lost: true}], events: [{id: e1, device: 3, xid: 79, count: 5}]}"
    )
    seen = probe.until(lambda seen: seen.events)
    (event,) = seen.events
    assert device(seen, 3).readings.lost
    assert (event.xid, event.device_id, event.count) == (79, device(seen, 3).id, 5)

    write(file, "profile: h100 x 8")
    probe.until(lambda seen: not device(seen, 3).readings.lost)
    write(file, "{profile: h100 x 8, events: [{id: e1, device: 3, xid: 79}, {id: e2, device: 4, xid: 48}]}")
    seen = probe.until(lambda seen: any(event.xid == 48 for event in seen.events))
    assert [event.sequence for event in seen.events] == [1, 2]


def test_events_that_are_in_the_file_at_the_start_are_history(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    write(path, "{profile: l4 x 1, events: [{id: old, device: 0, xid: 79}]}")
    with running(["simulated", "--file", str(path)]) as probe:
        assert probe.until(lambda seen: seen.devices).events == ()
        write(path, "{profile: l4 x 1, events: [{id: old, device: 0, xid: 79}, {id: new, device: 0, xid: 31}]}")
        assert [event.xid for event in probe.until(lambda seen: seen.events).events] == [31]


@pytest.mark.parametrize(
    ("bad", "why"), [("profile: [", "not YAML"), ("", "is empty"), ("{profle: x}", "profle: no such key")]
)
def test_a_bad_file_changes_nothing_but_is_named(file: Path, probe: RunningProbe, bad: str, why: str) -> None:
    file.write_text(bad)
    seen = probe.until(lambda seen: "FileInvalid" in codes(seen))
    assert len(seen.devices) == 8
    assert seen.problems[0].message.startswith(f"{file}: ")
    assert why in seen.problems[0].message
    file.write_text("profile: h100 x 2\n")
    seen = probe.until(lambda seen: len(seen.devices) == 2)
    assert seen.problems == ()


def test_no_file_is_a_node_without_a_driver_until_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "later.yaml"
    with running(["simulated", "--file", str(path)]) as probe:
        seen = probe.until(lambda seen: "FileMissing" in codes(seen))
        assert (seen.driver.state, seen.devices) == (DriverState.NOT_LOADED, ())
        write(path, "profile: l4 x 4")
        assert len(probe.until(lambda seen: seen.devices).devices) == 4
        path.unlink()
        probe.until(lambda seen: "FileMissing" in codes(seen) and seen.devices == ())


def test_a_file_that_cannot_be_used_is_named_in_the_line_and_on_stderr(tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong.yaml").write_text("profil: l4 x 1\n")
    for path, code, why in (
        (tmp_path, "FileInvalid", "Is a directory"),
        (wrong, "FileInvalid", "profil: no such key"),
        (tmp_path / "missing.yaml", "FileMissing", ""),
    ):
        done = ended("simulated", "--file", str(path), "--once")
        (line,) = done.lines
        (problem,) = parse_line(line.encode()).problems
        assert (done.code, problem.code, why in problem.message) == (1, code, True)
        assert str(path) in problem.message
        assert problem.message in done.err


def test_an_unchanged_file_is_reported_again_and_again(file: Path, probe: RunningProbe) -> None:
    first = probe.until(lambda seen: True)
    again = probe.until(lambda seen: seen.sequence > first.sequence)
    assert again.devices == first.devices
    assert again.instance == first.instance


def test_a_silent_probe_writes_again_when_it_may(file: Path, probe: RunningProbe) -> None:
    write(file, "{profile: h100 x 8, silent: true}")
    probe.until_quiet()
    write(file, "profile: h100 x 8")
    probe.until(lambda seen: len(seen.devices) == 8)


def test_a_hanging_probe_writes_nothing_whatever_the_file_says(file: Path, probe: RunningProbe) -> None:
    write(file, "{profile: h100 x 8, hang: true}")
    probe.until_quiet()
    write(file, "profile: h100 x 2")
    probe.until_quiet()
    assert probe.lines.empty()
    assert probe.process.poll() is None


def test_a_probe_ends_when_its_reader_has_gone(file: Path) -> None:
    process = subprocess.Popen([*COMMAND, "simulated", "--file", str(file)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) == 0


def test_a_probe_dies_with_its_parent_even_when_it_hangs(file: Path) -> None:
    """The parent waits for the first line, says the probe's id, and is killed while the probe hangs."""
    program = (
        "import os, subprocess, sys\n"
        "read_end, write_end = os.pipe()\n"
        f"command = [*{list(COMMAND)!r}, 'simulated', '--file', {str(file)!r}, '--fd', str(write_end)]\n"
        "child = subprocess.Popen(command, pass_fds=(write_end,))\n"
        "os.read(read_end, 1 << 20)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        write(file, "{profile: h100 x 1, hang: true}")
        time.sleep(0.5)  # it hangs by then; where it does not yet, it has to die as well
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _is_alive(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], " | ".join(KINDS)),
        (["simulated"], "one of the arguments --file --profile is required"),
        (["simulated", "--profile", "h900"], "argument --profile: 'h900' is not a known profile"),
        (
            ["simulated", "--profile", "l4", "--interval-seconds", "0"],
            "'0' is not allowed; give seconds from 0.1 to 3600",
        ),
        (["simulated", "--profile", "l4", "--fd", "1"], "'1' is not allowed; give an open file descriptor, 3 or above"),
        (["simulated", "--profile", "l4", "--fd", "999"], "argument --fd: 999: Bad file descriptor"),
        (["nvml", "--profile", "l4"], "unrecognized arguments: --profile l4"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments: Any, complaint: str) -> None:
    done = ended(*arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


@pytest.mark.parametrize("module", ["main", "simulated.probe", "nvidia.probe"])
def test_a_probe_stays_small(module: str) -> None:
    program = f"import sys, nodedevices_probe.{module}; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    unwanted = {"grpc", "pydantic", "pydantic_core", "annotated_types", "kubernetes", "kopf", "structlog", "asyncio"}
    assert not loaded & unwanted
    assert "yaml" not in loaded, "it is loaded with the first file"
    assert ("pynvml" in loaded) == (module == "nvidia.probe")
    assert ("hashlib" in loaded) == (module == "simulated.probe")  # it brings OpenSSL, 3.4 MiB


def test_once_is_one_line_of_json_for_people_and_jq() -> None:
    done = ended("simulated", "--profile", "gb200", "--once")
    assert (done.code, done.err) == (0, "")
    assert done.document["machine"]["clique"]


def test_the_version_is_the_distributions() -> None:
    assert nodedevices_common.__version__ == importlib.metadata.version("nodedevices")
