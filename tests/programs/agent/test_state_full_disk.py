"""The state file on a disk that takes no more."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from nodedevices_plugin.pipeline.state import State, StateFile

SAVED = State(boot_id="boot-1", offered=("nvidia.com/gpu",), confirmed="GPU-2=removed")
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from nodedevices_plugin.pipeline.state import State, StateError, StateFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
try:
    StateFile(Path(sys.argv[1])).save(State(confirmed="x" * 4096))
except StateError as error:
    sys.exit(f"refused: {error}")
"""


def test_a_disk_that_takes_no_more_is_reported_and_the_old_file_stays(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "nodedevices-state.json")
    file.save(SAVED)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(file.path)], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == f"refused: write {file.path}: {os.strerror(errno.EFBIG)}"
    assert file.load() == SAVED
    assert [each.name for each in file.path.parent.iterdir()] == ["nodedevices-state.json"]
