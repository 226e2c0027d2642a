"""A mount of one file whose readers can be made to wait in the kernel, as in a driver that does not answer.

A reader of a FUSE file whose request was taken and not answered sleeps uninterruptibly: no signal ends it, not even
SIGKILL, until the answer is given or the server ends. So nothing is left of a test that failed.

`mounted` runs this file on a node, in its namespaces: `python hanging_files.py FOLDER NAME CONTENT`, with a word for
each change on its standard input (`hang`, `answer`).
"""

from __future__ import annotations

import ctypes
import os
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR = 1, 2, 3, 14, 15, 18, 25, 26, 27, 29
INTERRUPT, BATCH_FORGET = 36, 42
WITHOUT_ANSWER = (FORGET, INTERRUPT, BATCH_FORGET)
NEVER_HANG = (INIT, RELEASE, RELEASEDIR, FLUSH)
HEAD = struct.Struct("<IIQQIIIHH")  # fuse_in_header
ANSWER = struct.Struct("<IiQ")  # fuse_out_header
ATTRIBUTES = struct.Struct("<6Q10I")  # fuse_attr
ROOT, FILE = 1, 2  # node ids
DIRECT_IO = 1
MAX_REQUEST = 1 << 20
NO_ENTRY, NOT_IMPLEMENTED = 2, 38
READY_SECONDS = 120


class Mount:
    """Answers the kernel, or takes its requests and keeps them."""

    def __init__(self, folder: str, name: str, content: bytes) -> None:
        self._name, self._content, self._hangs = name.encode(), content, False
        self._kept: list[bytes] = []
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        Path(folder).mkdir(parents=True, exist_ok=True)
        options = f"fd={self.device},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"hanging", folder.encode(), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")

    def hang(self) -> None:
        self._hangs = True

    def answer(self) -> None:
        self._hangs = False
        kept, self._kept = self._kept, []
        for request in kept:
            self._answer(request)

    def take(self) -> None:
        """One request of the kernel."""
        request = os.read(self.device, MAX_REQUEST)
        opcode = HEAD.unpack_from(request)[1]
        if opcode in WITHOUT_ANSWER:
            return
        if self._hangs and opcode not in NEVER_HANG:
            self._kept.append(request)
        else:
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = HEAD.unpack_from(request)
        error, body = self._reply(opcode, node, request[HEAD.size :])
        try:
            os.write(self.device, ANSWER.pack(ANSWER.size + len(body), -error, unique) + body)
        except FileNotFoundError:  # whoever requested it is gone
            return

    def _reply(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        if opcode == INIT:
            return 0, struct.pack("<4I2H2I2H2IH22x", 7, 31, 0, 0, 16, 12, 1 << 16, 1, 16, 0, 0, 0, 0)
        if opcode == LOOKUP:
            if node != ROOT or body.rstrip(b"\0") != self._name:
                return NO_ENTRY, b""
            return 0, struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + self._attributes(FILE)
        if opcode == GETATTR:
            return 0, struct.pack("<Q2I", 0, 0, 0) + self._attributes(node)
        if opcode in (OPEN, OPENDIR):
            return 0, struct.pack("<Q2I", 0, DIRECT_IO if opcode == OPEN else 0, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return 0, self._content[offset : offset + size]
        if opcode in (RELEASE, RELEASEDIR, FLUSH):
            return 0, b""
        return NOT_IMPLEMENTED, b""

    def _attributes(self, node: int) -> bytes:
        """They are never kept by the kernel, which asks each time. The content never changes, nor does its time."""
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT else (stat.S_IFREG | 0o644, len(self._content))
        return ATTRIBUTES.pack(node, size, 1, 0, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def main(folder: str, name: str, content: str) -> None:
    mount = Mount(folder, name, content.encode())
    print("ready", flush=True)
    words = {b"hang": mount.hang, b"answer": mount.answer}
    while True:
        readable, _, _ = select.select([mount.device, 0], [], [])
        if mount.device in readable:
            mount.take()
        if 0 in readable:
            said = os.read(0, 64).strip()
            if not said:
                return  # and the kernel answers all that waits with an error
            words[said]()


@dataclass(frozen=True)
class HangingFile:
    """The file as a test has it."""

    path: str
    _server: subprocess.Popen[bytes]

    def hang(self) -> None:
        """Whoever looks at the file from now on waits in the kernel."""
        self._say(b"hang\n")

    def answer(self) -> None:
        self._say(b"answer\n")

    @contextmanager
    def answering_at_the_end(self) -> Iterator[None]:
        """However the block ends, nobody waits in the kernel after it."""
        try:
            yield
        finally:
            self.answer()

    def _say(self, word: bytes) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(word)
        self._server.stdin.flush()


@contextmanager
def mounted(argv: Sequence[str], path: str, content: str) -> Iterator[HangingFile]:
    """The file of that path, in a folder of its own. `argv`: before a command so that it runs on the node."""
    folder, _, name = path.rpartition("/")
    program = [sys.executable, "-c", Path(__file__).read_text(), folder, name, content]
    server = subprocess.Popen([*argv, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n", "the file was not mounted: is there a /dev/fuse?"
        yield HangingFile(path, server)
    finally:
        server.stdin.close()
        deadline = time.monotonic() + READY_SECONDS
        while server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        server.kill()
        server.wait()
        server.stdout.close()
        subprocess.run([*argv, "umount", "--lazy", folder], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
