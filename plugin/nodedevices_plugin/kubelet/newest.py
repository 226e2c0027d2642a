"""The newest list of a resource, and its version: what a ListAndWatch stream is to send next.

A reader that is slow gets the newest list once in place of all that it has missed, and never misses the last one. Each
reader remembers the version that it was sent; there are as many readers as there are streams. Whoever uses it from
several threads has the lock (kubelet.server).
"""

from __future__ import annotations

from msgspec import Struct

NOTHING_SENT = 0  # the version that a new reader has


class NewestList(Struct):
    shown: bytes
    version: int = NOTHING_SENT + 1

    def show(self, shown: bytes) -> bool:
        """Take a list as the newest. False where it equals the one before, and nothing is to be sent."""
        if shown == self.shown:
            return False
        self.shown = shown
        self.show_again()
        return True

    def show_again(self) -> None:
        """Have the same list sent once more to every reader."""
        self.version += 1

    def after(self, sent: int) -> tuple[bytes, int] | None:
        """Return list and version for a reader that was sent this version; None: it has the newest."""
        return None if sent == self.version else (self.shown, self.version)
