"""Device nodes of hardware that the machine does not have, on one node of the rig: real ones, with /dev/null's numbers.

The rig's nodes have the machine's /dev. What is in a folder below it (/dev/dri) is made in a file system of the node's
own, which hides the machine's; what is in /dev itself (/dev/kfd) is made there, unless the machine has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath

from support.rig_cluster import RigCluster


@contextmanager
def made(rig: RigCluster, node: str, *paths: str) -> Iterator[None]:
    with ExitStack() as ending:

        def afterwards(script: str) -> None:
            ending.callback(rig.shell, node, script)

        for folder in dict.fromkeys(str(PurePosixPath(*PurePosixPath(path).parts[:3])) for path in paths):
            if folder in paths:
                continue
            if rig.shell(node, f"[ -e {folder} ] || {{ mkdir {folder}; echo made; }}"):
                afterwards(f"rmdir {folder}")
            rig.shell(node, f"mount -t tmpfs -o mode=755 tmpfs {folder}")
            afterwards(f"umount -l {folder}")
        for path in paths:
            if rig.shell(node, f"[ -e {path} ] || echo missing"):
                make(rig, node, path)
                afterwards(f"rm -f {path}")
        yield


def make(rig: RigCluster, node: str, path: str) -> None:
    """One; also one that was taken away meanwhile."""
    rig.shell(node, f"mkdir -p {PurePosixPath(path).parent}; mknod -m 666 {path} c 1 3")
