"""The container toolkit's CDI specification and nvidia-ctk, as the agent finds and uses them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from nodedevices_plugin.host.cdi_files import CdiFiles, ToolkitSpecs
from nodedevices_plugin.host.cdi_keeper import ProgramSpec, generate
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.cdi import CdiSpec, SpecRequest
from nodedevices_plugin.vendors.nvidia.cdi import SOURCE, CtkRequest, Host
from nodedevices_probe.programs import ProgramError
from support.patience import PATIENCE_SECONDS

KIND = "k8s.device-plugin.nvidia.com/gpu"
FILE = "k8s.device-plugin.nvidia.com-gpu.json"
REQUEST = CtkRequest(names=frozenset({"GPU-0"}), host=Host(), hook_path="/usr/bin/nvidia-ctk")


def document(*names: str, kind: str = KIND, library: bool = False) -> dict[str, Any]:
    entries = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{place}"}]}}
        for place, name in enumerate(names)
    ]
    found: dict[str, Any] = {"cdiVersion": "0.5.0", "kind": kind, "devices": entries}
    if library:
        found["containerEdits"] = {"mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}]}
    return found


# --- the spec that is there -------------------------------------------------------------------------------------------
class Watched:
    def __init__(self, *folders: Path) -> None:
        self.changes = 0
        self.specs = ToolkitSpecs(folders, SOURCE, worker=Worker("test"), on_change=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def look(self) -> dict[str, list[str]]:
        self.specs.wanted = True
        await self.specs._search()
        return {each.name: sorted(each.nodes) for each in self.specs.devices}


async def test_yaml_and_json_are_read_and_the_later_folder_outranks(tmp_path: Path) -> None:
    static, run = tmp_path / "etc", tmp_path / "run"
    static.mkdir()
    run.mkdir()
    (static / "nvidia.yaml").write_text(yaml.safe_dump(document("a", "b", kind="nvidia.com/gpu")))
    (run / "nvidia.json").write_text(json.dumps(document("b", kind="nvidia.com/gpu")))
    (run / "other.json").write_text(json.dumps(document("c")))
    watched = Watched(static, run, tmp_path / "nowhere")
    assert await watched.look() == {"a": ["/dev/nvidia0"], "b": ["/dev/nvidia0"]}
    await watched.look()
    assert watched.changes == 1
    (static / "nvidia.yaml").unlink()
    assert await watched.look() == {"b": ["/dev/nvidia0"]}
    assert watched.changes == 2


@pytest.mark.parametrize(
    "text", ["", "{", "kind: nvidia.com/gpu\ndevices: 3", "# nvidia.com/gpu\n[", "\0nvidia.com/gpu"]
)
async def test_a_file_that_cannot_be_read_is_as_good_as_none_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvidia.yaml").write_text(text)
    watched = Watched(tmp_path)
    assert await watched.look() == {}
    assert watched.specs.problem.startswith(f"{tmp_path}/nvidia.yaml: no")


async def test_a_good_file_that_breaks_counts_for_one_more_read_and_its_libraries_are_remembered(
    tmp_path: Path,
) -> None:
    file, good = tmp_path / "nvidia.yaml", document("0", kind="nvidia.com/gpu", library=True)
    watched = Watched(tmp_path)
    file.write_text(yaml.safe_dump(good))
    assert await watched.look() == {"0": ["/dev/nvidia0"]}
    file.write_text("kind: nvidia.com/gpu\ndevices: [")
    assert await watched.look() == {"0": ["/dev/nvidia0"]}, "it may be half written"
    assert watched.specs.problem == ""
    assert await watched.look() == {}, "container runtimes find nothing there, either"
    assert watched.specs.problem.startswith(f"{file}: not YAML: ")
    assert watched.specs.source == good
    file.write_text(yaml.safe_dump(good))
    assert await watched.look() == {"0": ["/dev/nvidia0"]}
    assert watched.specs.problem == ""
    file.unlink()
    assert await watched.look() == {}
    assert watched.specs.problem == f"{file}: it is gone"
    assert watched.specs.source == good


# --- nvidia-ctk -------------------------------------------------------------------------------------------------------
@pytest.fixture
def ctk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH but for the system's own programs; nothing in it yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    return folder


def program(folder: Path, *lines: str) -> None:
    path = folder / "nvidia-ctk"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


def answers(folder: Path, made: Mapping[str, Any]) -> None:
    (folder / "made.json").write_text(json.dumps(made))
    program(folder, f'echo "$*" >{folder}/arguments', f"cat {folder}/made.json")


def test_without_nvidia_ctk_it_says_where_it_looked(ctk: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"^nvidia-ctk is not in the agent's image$"):
        generate(REQUEST)
    with pytest.raises(ProgramError, match=f"nor below {tmp_path}$"):
        generate(replace(REQUEST, driver_root=str(tmp_path)))


@pytest.mark.parametrize("place", ["usr/bin", "usr/local/nvidia/toolkit"])
def test_nvidia_ctk_of_the_driver_root_is_used(ctk: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "driver-root" / place
    folder.mkdir(parents=True)
    answers(folder, document("GPU-0", library=True))
    assert generate(replace(REQUEST, driver_root=str(tmp_path / "driver-root"))) == document("GPU-0", library=True)


def test_nvidia_ctk_is_called_for_our_kind_and_names(ctk: Path) -> None:
    answers(ctk, document("GPU-0", "GPU-1", library=True))
    made = generate(REQUEST)
    assert made == document("GPU-0", "GPU-1", library=True)
    assert (ctk / "arguments").read_text().split() == [
        "cdi",
        "generate",
        "--format=json",
        "--vendor=k8s.device-plugin.nvidia.com",
        "--class=gpu",
        "--device-name-strategy=uuid",
        "--nvidia-ctk-path=/usr/bin/nvidia-ctk",
    ]


def test_a_mounted_driver_root_is_checked_and_the_hosts_paths_are_written(ctk: Path, tmp_path: Path) -> None:
    root = tmp_path / "driver-root"
    (root / "dev").mkdir(parents=True)
    found = document("GPU-0")
    found["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"] = f"{root}/dev/nvidia0"
    answers(ctk, found)
    host = Host(driver_root="/run/nvidia/driver")
    request = CtkRequest(
        names=frozenset(), host=host, driver_root=str(root), feature_flags=("a",), disable_hooks=("b", "c")
    )
    made = generate(request)
    assert made is not None
    assert made["devices"][0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0"}
    ]
    requested = (ctk / "arguments").read_text().split()
    assert requested[-5:] == [
        "--feature-flag=a",
        "--disable-hook=b",
        "--disable-hook=c",
        f"--driver-root={root}",
        f"--dev-root={root}",
    ]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["echo no driver >&2; exit 3"], "status 3: no driver"),
        (["exit 1"], "status 1: no output"),
        (["echo kind: x"], "not JSON"),
        (["printf '\\377'"], "not JSON"),
        (["echo '[]'"], "not valid"),
    ],
)
def test_nvidia_ctk_that_fails_says_why(ctk: Path, lines: list[str], says: str) -> None:
    program(ctk, *lines)
    with pytest.raises(ProgramError, match=says):
        generate(REQUEST)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (document("GPU-1"), "has no GPU-0"),
        (document("GPU-0", kind="nvidia.com/gpu"), "is of kind nvidia.com/gpu"),
        (document("GPU-0") | {"nonsense": 1}, "not valid"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(ctk: Path, made: dict[str, Any], says: str) -> None:
    answers(ctk, made)
    with pytest.raises(ProgramError, match=says):
        generate(REQUEST)


# --- files ------------------------------------------------------------------------------------------------------------
def minimal(*names: str) -> tuple[CdiSpec, ...]:
    return (CdiSpec(kind=KIND, file_name=FILE, document=document(*names)),)


def names(folder: Path) -> list[str]:
    return [each["name"] for each in json.loads((folder / FILE).read_text())["devices"]]


async def test_where_another_file_is_of_our_name_its_devices_stay_until_no_pod_holds_any(tmp_path: Path) -> None:
    theirs = document("GPU-0", "GPU-1", "GPU-gone", library=True)
    (tmp_path / FILE).write_text(json.dumps(theirs))
    files = CdiFiles(tmp_path, SOURCE, worker=Worker("test"))
    await files.first()
    assert files.before == theirs
    await files.keep(minimal("GPU-0", "GPU-1"))
    now = json.loads((tmp_path / FILE).read_text())
    assert [each["name"] for each in now["devices"]] == ["GPU-0", "GPU-1", "GPU-gone"]
    assert now["containerEdits"] == theirs["containerEdits"], "the driver's libraries"
    await files.keep(minimal("GPU-0", "GPU-1"), free=True)
    assert json.loads((tmp_path / FILE).read_text()) == document("GPU-0", "GPU-1")


async def test_libraries_from_before_the_start_are_there_after_the_last_pod_has_ended(tmp_path: Path) -> None:
    ours = document("GPU-0", library=True)
    (tmp_path / FILE).write_text(json.dumps(ours))
    files = CdiFiles(tmp_path, SOURCE, worker=Worker("test"))
    await files.first()
    await files.keep(minimal("GPU-0"), free=True)
    assert files.before == ours


async def test_a_file_that_is_no_longer_wanted_goes_when_no_pod_holds_a_device_and_others_files_stay(
    tmp_path: Path,
) -> None:
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    files = CdiFiles(tmp_path, SOURCE, worker=Worker("test"))
    await files.keep(minimal("GPU-0"))
    await files.keep((), free=False)
    assert names(tmp_path) == ["GPU-0"]
    await files.keep((), free=True)
    assert os.listdir(tmp_path) == ["nvidia.yaml"]  # noqa: PTH208
    await files.keep(minimal("GPU-0"), free=True)
    assert names(tmp_path) == ["GPU-0"]


async def test_files_of_our_names_from_before_the_start_go_in_the_same_way(tmp_path: Path) -> None:
    for name in ("gpu.json", "gds.json", "other.json"):
        (tmp_path / f"k8s.device-plugin.nvidia.com-{name}").write_text("{}")
    (tmp_path / ".k8s.device-plugin.nvidia.com-gds.json.new").touch()  # killed while it wrote
    files = CdiFiles(tmp_path, SOURCE, worker=Worker("test"))
    for _ in range(2):
        await files.keep(minimal("GPU-0"), free=False)
    assert len(os.listdir(tmp_path)) == 4  # noqa: PTH208
    for _ in range(2):
        await files.keep(minimal("GPU-0"), free=True)
    assert sorted(os.listdir(tmp_path)) == [  # noqa: PTH208
        "k8s.device-plugin.nvidia.com-gpu.json",
        "k8s.device-plugin.nvidia.com-other.json",
    ]
    assert names(tmp_path) == ["GPU-0"]


async def test_a_folder_that_cannot_be_written_is_a_problem_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    files = CdiFiles(tmp_path / "cdi", SOURCE, worker=Worker("test"))
    await files.keep(minimal("GPU-0"))
    assert f"{tmp_path}/cdi" in files.problem


# --- what nvidia-ctk makes, over time ---------------------------------------------------------------------------------
TWO = replace(REQUEST, names=frozenset({"GPU-0", "GPU-1"}))


async def test_what_it_made_is_had_for_that_request_only(tmp_path: Path) -> None:
    requested: list[SpecRequest] = []

    def make(request: SpecRequest) -> dict[str, Any]:
        requested.append(request)
        return document(*sorted(request.names))

    spec = ProgramSpec(make=make)
    for _ in range(3):
        await spec.want(REQUEST, patience_seconds=PATIENCE_SECONDS)
    assert (spec.current(REQUEST), set(spec.names), spec.problem) == (document("GPU-0"), {"GPU-0"}, "")
    assert spec.current(TWO) is None
    await spec.want(TWO, patience_seconds=PATIENCE_SECONDS)
    assert requested == [REQUEST, TWO]
    assert spec.current(TWO) == document("GPU-0", "GPU-1")


async def test_where_it_fails_the_one_before_is_kept_and_the_reason_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make(request: SpecRequest) -> dict[str, Any]:
        if request == TWO:
            raise ProgramError("no driver")
        return document(*request.names)

    spec = ProgramSpec(make=make)
    await spec.want(REQUEST, patience_seconds=PATIENCE_SECONDS)
    for _ in range(3):
        await spec.want(TWO, patience_seconds=PATIENCE_SECONDS)
    assert (spec.current(TWO), spec.names, spec.problem) == (None, frozenset(), "no driver")
    assert spec.made == document("GPU-0")
    assert capsys.readouterr().out.count("nvidia-ctk failed to generate a CDI specification") == 1


async def test_while_it_is_at_work_nobody_waits_for_long() -> None:
    go, changed = Event(), Event()

    def make(request: SpecRequest) -> dict[str, Any]:
        go.wait(PATIENCE_SECONDS)
        return document(*request.names)

    spec = ProgramSpec(make=make, on_change=changed.set)
    await spec.want(REQUEST, patience_seconds=0.01)
    assert (spec.current(REQUEST), spec.problem) == (None, "")
    go.set()
    while not changed.is_set():
        await Worker("poll").run(lambda: changed.wait(0.05))
    assert spec.current(REQUEST) == document("GPU-0")
