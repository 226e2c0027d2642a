"""A disk that hangs, for a process that has this folder on its PYTHONPATH: fsync returns when the file named by
FSYNC_HANGS_WHILE is gone."""

import os
import time

_fsync = os.fsync


def _hanging(descriptor: int) -> None:
    while os.path.exists(os.environ["FSYNC_HANGS_WHILE"]):  # noqa: PTH110  imports nothing
        time.sleep(0.05)
    _fsync(descriptor)


os.fsync = _hanging  # type: ignore[assignment]
