"""What a record says in one row, which Python and which size a folder is for, and which card is left alone."""

from __future__ import annotations

from typing import Any

from hardware.__main__ import parser
from hardware.bundle import too_large, uv_command
from hardware.main import WHOLE_SECONDS, steps
from hardware.processes import busy
from hardware.row import row
from hardware.run import unfit
from support.cases import cases

Json = dict[str, Any]
MANIFEST = {"python": "3.12", "machine": "x86_64"}


def step(found: Json | None = None, *, outcome: str = "done", why: str = "") -> Json:
    return {"outcome": outcome, "why": why, "found": found or {}}


def fault(xid: int, *codes: str) -> Json:
    return {
        "expected XID": xid,
        "events": [{"xid": xid, "event after ms": 12.4}],
        "status": {"health": {"state": "Healthy"}, "notices": [{"code": code} for code in codes]},
    }


def word(word: str, expected: str) -> Json:
    return {"word": word, "expected": expected, "as expected": word == expected}


def test_a_record_of_every_step_is_one_row() -> None:
    fields = [{"field": "brand", "outcome": "equal"}, {"field": "minor", "outcome": "different"}]
    driver = {"version": "570.148.08", "cudaVersion": "12.8", "state": "Loaded"}
    found = {
        "line": {"driver": driver, "devices": [{"productName": "NVIDIA H100 80GB HBM3"}] * 2},
        "machine": {"architecture": "x86_64", "python": "3.12.3"},
        "nvidia-smi": [{"id": "GPU-1", "fields": fields}, {"id": "GPU-2", "fields": [], "missing": "not in the probe"}],
        "at rest": {"poll milliseconds": {"median": 9}, "resident MiB": {"probe": 20.2, "agent": 61.0}},
    }
    record = {
        "began": "2026-12-01T10:00:00+00:00",
        "version": "0.1.0",
        "commit": "0123456789ab",
        "steps": {
            "probing": step(found),
            "checking": step({"summary": "DEVICES OK - 2 healthy (2 gpu)"}),
            "serving": step({"by variables": {"seconds to Register": 1.234}}),
            "faults": step({"device": "GPU-1", "trap": fault(13, "Xid13")}),
            "use": step({"computes": word("", ""), "memory only": word("Idle", "MemoryOnly")}),
            "mps": step(
                {"plain": {"limits hold": True}}, outcome="failed", why="a traceback\nRuntimeError: cuInit | 999"
            ),
        },
    }
    assert row(record) == (
        "| 2026-12-01 | 2 x NVIDIA H100 80GB HBM3, x86_64, Python 3.12.3 | 570.148.08 (CUDA 12.8) "
        "| `make hardware`, 0.1.0 (01234567) | 1 fields equal to nvidia-smi's, different: minor; "
        "GPU-2 not in the probe; a poll 9 ms; at rest 81 MiB with two probes; check: DEVICES OK - 2 healthy (2 gpu); "
        "Register after 1.23 s; trap: XID 13 after 12 ms, Healthy, notices: Xid13; computes: in use; "
        "memory only: Idle (not MemoryOnly); MPS plain: limits hold; mps failed: RuntimeError: cuInit / 999 |"
    )


def test_a_record_that_has_hardly_begun_is_a_row_as_well() -> None:
    assert row(
        {"began": "2026-12-01T10:00:00+00:00", "steps": {"probing": step(outcome="failed", why="ended after 5 s")}}
    ) == ("| 2026-12-01 | no GPU, Python ? | none | `make hardware`,  () | probing failed: ended after 5 s |")


def test_the_python_of_the_packages_and_the_largest_files_of_a_large_folder_are_named() -> None:
    assert unfit(MANIFEST, "3.12", "CPython", "x86_64") == ""
    assert unfit(MANIFEST, "3.10", "CPython", "x86_64") == (
        "run.py: these packages are for CPython 3.12 on x86_64, and this is CPython 3.10 on x86_64. Run it with "
        "python3.12, or make a folder for this one: make hardware-bundle HARDWARE_PYTHON=3.10"
    )
    assert "this is PyPy 3.12 on aarch64" in unfit(MANIFEST, "3.12", "PyPy", "aarch64")
    sizes = {"a.zip": 9 << 20, "run.py": 1000, "b.zip": 12 << 20}
    assert too_large(sizes) == ""
    assert too_large(sizes, 20 << 20) == (
        "the folder has 21.0 MiB, and may have 20; its largest files: b.zip (12.0 MiB), a.zip (9.0 MiB), "
        "run.py (0.0 MiB)"
    )


def test_wheels_are_taken_by_hash_and_no_step_is_longer_than_the_whole() -> None:
    command = " ".join(uv_command("3.12", "aarch64"))
    assert "--require-hashes --only-binary :all: --python-version 3.12" in command
    assert "--python-platform aarch64-manylinux_2_28" in command
    assert all(step.seconds < WHOLE_SECONDS for step in steps(60.0))
    assert [step.module for step in steps(60.0)] == ["probing", "checking", "serving", "faults", "use", "mps"]


@cases(
    ("readings", "why"),
    ({"processes": 0, "memoryAllocatedBytes": 4 << 20}, ""),
    ({"memoryAllocatedBytes": 4 << 20}, ""),  # the driver does not show processes of other namespaces
    ({"processes": 2, "memoryAllocatedBytes": 0}, "2 other processes are on it"),
    ({"memoryAllocatedBytes": 64 << 20}, "64 MiB of it are in use"),
    ({}, "whether other processes are on it is not known"),
    ({"lost": True}, "it does not answer: lost"),
)
def test_a_card_that_another_process_may_be_on_is_left_alone(readings: Json, why: str) -> None:
    assert busy({"id": "GPU-1", "readings": readings}) == why


def test_a_card_in_mig_mode_is_left_alone_and_arguments_behind_dashes_are_the_runs() -> None:
    assert busy({"readings": {"processes": 0}, "extra": {"migEnabled": {"bool": True}}}) == "it is in MIG mode"
    # As `make hardware ARGUMENTS="--no-faults --seconds 20"` has them.
    given = parser().parse_args(["run", "--", "--no-faults", "--seconds", "20"])
    assert (given.command, given.arguments) == ("run", ["--no-faults", "--seconds", "20"])
