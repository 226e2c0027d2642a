"""What the rig builds: named by its content, explained when it fails."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from cluster.rig import binaries, cgroups, images, oci
from cluster.rig.problem import Progress, RigError


def a_tree(root: Path) -> None:
    for image in images.IMAGES:
        for source in image.sources:
            path = root / source
            if path.suffix or path.name in {"LICENSE", "Dockerfile", ".dockerignore"}:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source)
            else:
                path.mkdir(parents=True, exist_ok=True)
                (path / "module.py").write_text(source)


@pytest.mark.skipif(not Path("/etc/os-release").exists(), reason="says which release images are made of")
def test_an_image_is_named_by_what_goes_into_it_and_by_nothing_else(tmp_path: Path) -> None:
    a_tree(tmp_path)
    agent, operator = images.IMAGES
    before = images.content(agent, tmp_path), images.content(operator, tmp_path)
    cached = tmp_path / "plugin" / "nodedevices_plugin" / "__pycache__"
    cached.mkdir()
    (cached / "module.pyc").write_bytes(b"")
    assert (images.content(agent, tmp_path), images.content(operator, tmp_path)) == before
    (tmp_path / "plugin" / "nodedevices_plugin" / "module.py").write_text("changed")
    assert images.content(agent, tmp_path) != before[0]
    assert images.content(operator, tmp_path) == before[1]


def test_what_a_killed_build_left_is_swept_and_archives_and_logs_stay(tmp_path: Path) -> None:
    for name in ("nodedevices-agent-0a.tar", "nodedevices-agent-0b.new", "nodedevices-agent.log", ".lock"):
        (tmp_path / name).touch()
    (tmp_path / "tmpab12" / "plugin").mkdir(parents=True)
    images.sweep(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".lock",
        "nodedevices-agent-0a.tar",
        "nodedevices-agent.log",
    ]


@pytest.mark.parametrize("tool", binaries.TOOLS, ids=lambda tool: tool.name)
def test_a_tool_is_not_built_twice(tool: binaries.Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEDEVICES_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no go
    tool.path.parent.mkdir(parents=True)
    tool.path.touch()
    assert binaries.build_tool(tool, Progress(quiet=True)) == tool.path
    assert tool.version in tool.path.parent.name, "another version has another folder"


def test_a_busybox_image_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "busybox"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("a.tar", "b.tar"):
        oci.busybox_image(tmp_path / name, "localhost/x:dev", ["/bin/busybox"])
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        blobs = {one.name: tar.extractfile(one) for one in tar.getmembers()}
        contents = {name: file.read() for name, file in blobs.items() if file}
    [manifest] = json.loads(contents["index.json"])["manifests"]
    assert manifest["annotations"]["io.containerd.image.name"] == "localhost/x:dev"
    for name, data in contents.items():
        if name.startswith("blobs/"):
            assert name.endswith(hashlib.sha256(data).hexdigest())


def a_group(folder: Path, controllers: str, on: str = "") -> Path:
    (folder / "cgroup.controllers").write_text(controllers + "\n")
    (folder / "cgroup.subtree_control").write_text(on + "\n")
    return folder


def test_cgroup_v2_hands_on_what_is_there_and_not_on_yet(tmp_path: Path) -> None:
    group = a_group(tmp_path, "cpuset cpu io memory pids rdma", on="memory")
    cgroups.delegate(group)
    assert (group / "cgroup.subtree_control").read_text().split() == ["+cpu", "+cpuset", "+pids", "+io"]


def test_cgroup_v2_without_a_needed_controller_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="lacks the controllers cpuset"):
        cgroups.delegate(a_group(tmp_path, "cpu memory pids"))
