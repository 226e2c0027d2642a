"""A control group for each node, under which its kubelet keeps the pods: on cgroup v1, on v2, and which it is.

The node's daemons stay where they were started; only pods are in the group, so its end is the end of the pods.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from cluster.rig.problem import RigError

ROOT = Path("/sys/fs/cgroup")
# What the kubelet needs of v2. `io` and `hugetlb` are used where the kernel has them.
NEEDED = ("cpu", "cpuset", "memory", "pids")
WANTED = (*NEEDED, "io", "hugetlb")
REMOVE_SECONDS = 10


def version() -> int:
    """1 or 2: which one holds the controllers."""
    return 2 if (ROOT / "cgroup.controllers").exists() else 1


def hierarchies() -> list[Path]:
    """Where a group has to be made: one place on v2, one for each mounted hierarchy on v1."""
    if version() == 2:
        return [ROOT]
    found = [one for one in ROOT.iterdir() if not one.is_symlink() and (one / "cgroup.procs").exists()]
    if not found:
        raise RigError(f"no cgroup hierarchy is mounted at {ROOT}")
    return sorted(found)


def make(name: str) -> None:
    """The node's group, ready for a kubelet."""
    if version() == 2:
        delegate(ROOT)
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if version() == 1:
            # A new cpuset has no CPU and no memory node, and nothing can run in it, until it is filled.
            for file in ("cpuset.mems", "cpuset.cpus"):
                if (hierarchy / file).exists():
                    (group / file).write_text((hierarchy / file).read_text())
    if version() == 2:
        delegate(ROOT / name)


def delegate(group: Path) -> None:
    """Lets the groups below use the controllers."""
    there = (group / "cgroup.controllers").read_text().split()
    missing = [one for one in NEEDED if one not in there]
    if missing:
        raise RigError(f"cgroup v2 here lacks the controllers {', '.join(missing)} ({group}/cgroup.controllers)")
    on = (group / "cgroup.subtree_control").read_text().split()
    new = [one for one in WANTED if one in there and one not in on]
    if not new:
        return
    try:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in new))
    except OSError as error:
        raise RigError(
            f"cgroup v2: {group} cannot hand on {', '.join(new)} ({error.strerror}); in a container, move the "
            "processes of its top group into one below it first"
        ) from error


def remove(prefix: str) -> list[str]:
    """Removes every group of a name with this prefix, once its processes are gone; their names."""
    names: set[str] = set()
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        left = [group for hierarchy in hierarchies() for group in hierarchy.glob(f"{prefix}*") if group.is_dir()]
        names |= {group.name for group in left}
        if not left:
            return sorted(names)
        if time.monotonic() >= deadline:
            raise RigError(f"control groups that cannot be removed: {', '.join(map(str, left))}")
        for group in left:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # a process in it is still ending: again
                    Path(folder).rmdir()
        time.sleep(0.02)
