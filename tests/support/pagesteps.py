"""A page's shell blocks, run as a reader runs them: in their order, in one folder, with the names that it sets itself.

The block of the section `1. Names` comes before every other one, since each of those runs in its own shell, which
ends at the first command that fails.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = "1"
STEP_SECONDS = 150


@dataclass(frozen=True)
class Page:
    """Step number, or the heading of a section without one -> its script."""

    scripts: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Page:
        _, *parts = HEADING.split(path.read_text())
        titled = zip(parts[::2], parts[1::2], strict=True)
        blocks = {title.partition(".")[0]: "".join(BLOCK.findall(text)) for title, text in titled}
        return cls({number: script for number, script in blocks.items() if script})

    def run(self, step: str, *, folder: Path, environment: Mapping[str, str]) -> str:
        """What the step's block printed. Fails with that, where the reader would see an error."""
        script = "".join(self.scripts[each] for each in dict.fromkeys((NAMES, step)))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        print(f"--- step {step}\n{done.stdout}")
        assert done.returncode == 0, f"step {step} of the page ended with {done.returncode}:\n{done.stdout}"
        return done.stdout
