"""The machine's /sys, /proc, /dev and /run below a folder: what kernels, drivers and broken mounts may hold there.

Nothing here raises for what is found, and nothing blocks: a file that is missing, unreadable, no regular file (a FIFO
would block for ever), not UTF-8 or too long is "not known", or what of it can be read. A driver that hangs inside the
kernel hangs its reader; that is what a probe's own process is for.

Absolute links are common in a root that is mounted elsewhere (Debian's alternatives, packages of the driver), and
followed from here they would lead into this container: `inside` follows them as a process there would.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nodedevices_probe.protocol import text

MAX_BYTES = 4096  # of one attribute: sysfs gives at most a page
MAX_ENTRIES = 4096  # of one folder; what is beyond is no hardware
_DIGITS = re.compile(r"([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Roots:
    """Paths are relative to `root`: "sys/class/net". `devices`, `sys`: where the machine's /dev and /sys are, if they
    are elsewhere: a container has a /dev of its own, and a /sys with the network interfaces of its pod."""

    root: Path = Path("/")
    devices: Path | None = None
    sys: Path | None = None

    def _place(self, path: str | Path) -> str:
        """As text: machines with many functions have thousands of files. A path that `place` gave stays."""
        below = str(path)
        if below.startswith("/"):
            return below
        if self.sys is not None and below.startswith("sys/"):
            return f"{self.sys}{below.removeprefix('sys')}"
        return f"{self.root}/{below}"

    def read(self, path: str | Path, limit: int = MAX_BYTES) -> str:
        """The content, without white space around it; "" where there is none, or it cannot be read."""
        return self.said(path, limit) or ""

    def said(self, path: str | Path, limit: int = MAX_BYTES) -> str | None:
        """The same; None where the file is not there or cannot be read."""
        try:
            file = os.open(self._place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            raw = bytearray()
            while len(raw) < limit and (more := os.read(file, limit - len(raw))):
                raw += more
        except OSError:  # the device left while it was read, or its driver does not say now
            return None
        finally:
            os.close(file)
        return raw.decode("utf-8", "replace").strip()

    def unsaid(self, at: str, *names: str) -> str | None:
        """Return which of these files of a device's folder is there and cannot be read, for people; None: none. What a
        device is called by, or cut into, is then not known: it is no other device, and not one without that."""
        name = next((it for it in names if self.exists(f"{at}/{it}") and self.said(f"{at}/{it}") is None), None)
        return None if name is None else f"{name} cannot be read: its driver gives no answer, as during a reset"

    def word(self, path: str | Path) -> str:
        """The first line, as a line of the probe may carry it."""
        return text(self.read(path).partition("\n")[0])

    def number(self, path: str | Path, base: int = 10) -> int | None:
        """A whole number: 42, -1, or 0x2a where `base` is 16; None where there is none."""
        return number(self.read(path), base)

    def properties(self, path: str | Path) -> dict[str, int]:
        """Lines of a name and a number, as KFD writes them; other lines are left out."""
        pairs = (line.split() for line in self.read(path, 16 * MAX_BYTES).splitlines())
        return {pair[0]: value for pair in pairs if len(pair) == 2 and (value := number(pair[1])) is not None}

    def names(self, path: str | Path, *, folders: bool = False) -> tuple[str, ...]:
        """Return what a folder holds, in natural order (card2 before card10), names with odd characters left out.
        `folders`: only what is itself a folder, and no link to one."""
        found = list[str]()
        with contextlib.suppress(OSError, ValueError), os.scandir(self._place(path)) as entries:
            for entry in entries:
                if folders and not entry.is_dir(follow_symlinks=False):
                    continue
                if entry.name.isascii() and entry.name.isprintable() and " " not in entry.name:
                    found.append(entry.name)
                if len(found) >= MAX_ENTRIES:
                    break
        return tuple(sorted(found, key=_natural))

    def link(self, path: str | Path) -> str:
        """The last part of what a link points to: a driver's name, a PCI address; "" where there is no link."""
        return next(reversed(self.target(path)), "")

    def target(self, path: str | Path) -> tuple[str, ...]:
        """The parts of what a link points to, which is not followed; () where there is no link."""
        try:
            return tuple(text(part) for part in os.readlink(self._place(path)).split("/"))  # noqa: PTH115
        except (OSError, ValueError):
            return ()

    def exists(self, path: str | Path) -> bool:
        return os.path.exists(self._place(path))  # noqa: PTH110

    def has_node(self, node: str) -> bool:
        """True when `/dev/...` is there: a device node where the root is the real one, else anything of that name."""
        try:
            mode = self.place(node).stat().st_mode
        except (OSError, ValueError):
            return False
        return self.root != Path("/") or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)

    def place(self, path: str) -> Path:
        """Return where a path of the machine is, `/dev/fuse`."""
        if self.devices is not None and path.startswith("/dev/"):
            return self.devices / path.removeprefix("/dev/")
        return Path(self._place(path.lstrip("/")))

    def number_of(self, node: str) -> str:
        """Return the device of a node, as /sys/dev has it: char/10:229; "" for what is no device node."""
        try:
            found = self.place(node).stat()
        except (OSError, ValueError):
            return ""
        kind = "char" if stat.S_ISCHR(found.st_mode) else "block" if stat.S_ISBLK(found.st_mode) else ""
        return f"{kind}/{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if kind else ""


def number(value: str, base: int = 10) -> int | None:
    """Return the text as a whole number; None where it is none."""
    if len(value) > 24 or "_" in value:
        return None
    try:
        return int(value, base)
    except ValueError:
        return None


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A key to sort by: numbers in a name count as numbers."""
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _DIGITS.split(name))


MAX_LINKS = 40  # as the kernel


def inside(root: Path, path: str) -> Path | None:
    """Return what a path means to a process that has `root` as `/`, without links; None: there is nothing. Raises
    OSError."""
    todo, done, links = deque(path.split("/")), list[str](), 0
    while todo:
        part = todo.popleft()
        if part in {"", ".", ".."}:
            done = done[:-1] if part == ".." else done
            continue
        try:
            target = str(root.joinpath(*done, part).readlink())
        except OSError:  # no link, or nothing at all
            done.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        done = [] if target.startswith("/") else done
        todo.extendleft(reversed(target.split("/")))
    found = root.joinpath(*done)
    return found if found.exists() else None


# --- optional nodes and files of drivers ------------------------------------------------------------------------------
MAX_OF_A_KIND = 256


def existing(driver_root: Path, patterns: Iterable[str]) -> frozenset[str]:
    """Return those that are there, as paths from the root (`/dev/nvidiactl`). `patterns`: paths, the last part a glob.

    Where the driver's root is mounted and has a /dev of its own, that /dev counts, as for NVIDIA's plugin; links in it
    lead where they lead on the host. A folder that cannot be read counts as empty."""
    return frozenset(path for pattern in patterns for path in islice(_found(driver_root, pattern), MAX_OF_A_KIND))


def _found(driver_root: Path, pattern: str) -> Iterator[str]:
    try:
        mounted = inside(driver_root, pattern.split("/")[1])
        root = driver_root if mounted is not None and mounted.is_dir() else Path("/")
        folder, _, name = pattern.rpartition("/")
        place = inside(root, folder)
        if place is None:
            return
        names = sorted(path.name for path in place.glob(name)) if "*" in name else [name]
        for file in names:
            if inside(root, f"{folder}/{file}") is not None:
                yield f"{folder}/{file}"
    except OSError:
        return
