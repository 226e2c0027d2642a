"""Where libnvidia-ml.so.1 is looked for below the root of a driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_probe.node.roots import inside
from nodedevices_probe.nvidia.calls import FOLDERS, NAME, find


def touch(root: Path, path: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    return target


def link(root: Path, path: str, to: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(to)


def test_it_is_searched_for_where_nvidias_plugin_looks_and_in_that_order(tmp_path: Path) -> None:
    assert FOLDERS == (
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "lib64",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
    )
    assert find(tmp_path) is None
    for folder in reversed(FOLDERS):
        there = touch(tmp_path, f"{folder}/{NAME}")
        assert find(tmp_path) == there


def test_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    real = touch(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.570.148.08")
    link(tmp_path, f"usr/lib/x86_64-linux-gnu/nvidia/current/{NAME}", "libnvidia-ml.so.570.148.08")
    link(tmp_path, f"etc/alternatives/nvidia--{NAME}", f"/usr/lib/x86_64-linux-gnu/nvidia/current/{NAME}")
    link(tmp_path, f"usr/lib/x86_64-linux-gnu/{NAME}", f"../../../etc/alternatives/nvidia--{NAME}")
    link(tmp_path, "lib", "usr/lib")
    assert find(tmp_path) == real
    assert inside(tmp_path, f"lib/x86_64-linux-gnu/{NAME}") == real


@pytest.mark.parametrize("to", ["../../../../../../usr/lib64/real", "/usr/lib64/real", "real"])
def test_no_link_leads_out_of_the_root(tmp_path: Path, to: str) -> None:
    root = tmp_path / "root"
    real = touch(root, "usr/lib64/real")
    link(root, f"usr/lib64/{NAME}", to)
    assert find(root) == real


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    link(tmp_path, f"usr/lib64/{NAME}", NAME)
    (tmp_path / "lib64" / NAME).mkdir(parents=True)
    link(tmp_path, f"lib/x86_64-linux-gnu/{NAME}", "/nowhere")
    assert find(tmp_path) is None
