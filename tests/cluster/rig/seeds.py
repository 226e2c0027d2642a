"""Images on nodes at once: containerd's folder with the images imported, made once and then linked into every node.

Importing unpacks half a gigabyte for every node; linking the unpacked files takes a moment. The links are safe: blobs
and layers are never written again (a container's writes go to its own layer), and the databases, which are, are
copied. A seed is named by its images; one that was not finished has another name.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.rig import binaries
from cluster.rig.binaries import Binaries
from cluster.rig.problem import Progress, RigError, wait_for

KEEP = 2  # of some hundred MB each; more while somebody may still be linking them
IN_USE_SECONDS = 600
START_SECONDS = 120
CONTAINERD = """\
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
  address = "{address}"
[ttrpc]
  address = "{address}.ttrpc"
"""


def seed(archives: Sequence[Path], programs: Binaries, progress: Progress) -> Path:
    """A containerd folder that has the images of these archives."""
    store = binaries.cache() / "seeds"
    store.mkdir(parents=True, exist_ok=True)
    facts = [(str(one), (known := one.stat()).st_size, known.st_ino) for one in archives]
    name = hashlib.sha256(f"{binaries.CONTAINERD} {facts}".encode()).hexdigest()[:16]
    place = store / name
    with (store / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            progress.say(f"unpacking {len(archives)} images, once for all nodes")
            new = store / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            with _containerd(new, programs) as address:
                for archive in archives:
                    _ctr(programs, address, "--namespace", "k8s.io", "images", "import", "--local", str(archive))
            new.rename(place)
        place.touch()
        kept = sorted((one for one in store.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
        for old in kept[:-KEEP]:
            if old.stat().st_mtime < time.time() - IN_USE_SECONDS:
                shutil.rmtree(old)
    return place


def plant(place: Path, target: Path) -> None:
    """Makes `target` a containerd folder with the seed's images, sharing all that is never written."""
    if subprocess.run(["cp", "-al", str(place), str(target)], capture_output=True, check=False).returncode:
        shutil.rmtree(target, ignore_errors=True)  # another file system than the cache's
        done = subprocess.run(["cp", "-a", str(place), str(target)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RigError(f"{place} cannot be copied: {done.stderr.strip()[-300:]}")
        return
    for database in target.rglob("*.db"):
        if "/fs/" not in str(database.relative_to(target)):
            original = place / database.relative_to(target)
            database.unlink()
            shutil.copy2(original, database)


@contextmanager
def _containerd(root: Path, programs: Binaries) -> Iterator[str]:
    """A containerd of its own over that folder, without pods; its address. Its mounts end with it."""
    with tempfile.TemporaryDirectory(prefix="nd-") as name:
        folder = Path(name)
        address = str(folder / "sock")
        settings = CONTAINERD.format(root=root, state=folder / "state", address=address)
        (folder / "config.toml").write_text(settings)
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--propagation", "private", "setpriv", "--pdeathsig", "KILL"),
                    *(programs["containerd"], "--config", str(folder / "config.toml")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_for(
                "a containerd to unpack images with",
                lambda: process.poll() is not None or Path(address).exists(),
                seconds=START_SECONDS,
            )
            if process.poll() is not None:
                raise RigError(f"containerd ended: {log.read_text()[-500:]}")
            yield address
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _ctr(programs: Binaries, address: str, *args: str) -> None:
    done = subprocess.run(
        [programs["ctr"], "--address", address, *args],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RigError(f"ctr {' '.join(args)}: {done.stderr.strip()[-500:]}")
