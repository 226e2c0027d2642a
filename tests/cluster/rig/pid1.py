"""The first process of a node: gives the node folders of its own, then reaps what dies, until it is killed.

Run by `unshare` as pid 1 of new mount, network and pid namespaces: `pid1.py FOLDER`. When it is killed the kernel ends
everything in the node, containers too, and undoes every mount; nothing of this reaches the machine's own mounts.
FOLDER/ready appears when the folders are in place. It imports nothing of the rig: it runs while nothing is set up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

# Its own and new, on the cluster's disk: what kubelet, containerd and CNI keep, and the simulated devices file.
STATE = ("kubelet", "containerd", "cni", "nodedevices")
# Its own and new, in memory: what a machine that runs containers itself may have something in.
EMPTY = ("/run", "/etc/cdi", "/etc/cni")


def mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True)


def furnish(folder: Path) -> None:
    """Default paths, private: a pod that mounts /etc/cdi or /var/log of its node never sees the machine's."""
    mount("-t", "proc", "proc", "/proc")
    scratch = folder / "scratch"
    scratch.mkdir()
    mount("-t", "tmpfs", "tmpfs", str(scratch))
    for path in ("/etc", "/var/lib"):  # the machine's to read; what the node writes goes to memory
        upper, work = scratch / path.replace("/", "-") / "upper", scratch / path.replace("/", "-") / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)
    for name in STATE:
        own = folder / name
        own.mkdir(exist_ok=True)
        there = Path("/var/lib", name)
        there.mkdir(exist_ok=True)
        mount("--bind", str(own), str(there))
    (folder / "var-log").mkdir(exist_ok=True)  # the node was there before
    mount("--bind", str(folder / "var-log"), "/var/log")
    for path in EMPTY:
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "tmpfs", path)
    mount("--make-rshared", "/")  # as systemd leaves it on a real node: pods may request Bidirectional anywhere
    for path in ("/run/cdi", "/run/netns", "/run/containerd", "/run/lock", "/etc/cni/net.d"):
        Path(path).mkdir()


def main() -> None:
    folder = Path(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    furnish(folder)
    (folder / "ready").touch()
    while True:
        signal.sigwait({signal.SIGCHLD})
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break


main()
