"""A page's shell blocks, run as a reader runs them: in their order, in one folder, with the names that it sets itself.
And a page's objects, as a reader applies them.

The block of the section `1. Names` comes before every other one, since each of those runs in its own shell, which
ends at the first command that fails. A page without such a section has all it needs in each. What a page says that its
blocks print is in `text` blocks.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.repository import ROOT

HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = "1"
STEP_SECONDS = 150


def objects(page: str, *kinds: str) -> list[dict[str, Any]]:
    """The objects of these kinds in a page of docs, one at least of each."""
    blocks = YAML.findall((ROOT / "docs" / page).read_text())
    found = [one for block in blocks for one in yaml.safe_load_all(block) if one.get("kind") in kinds]
    assert {one["kind"] for one in found} == set(kinds)
    return found


@dataclass(frozen=True)
class Page:
    """Step number, or the heading of a section without one -> its script, and what the page says that it prints."""

    scripts: Mapping[str, str]
    outputs: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Page:
        _, *parts = HEADING.split(path.read_text())
        titled = {title.partition(".")[0]: text for title, text in zip(parts[::2], parts[1::2], strict=True)}
        blocks = {title: "".join(BLOCK.findall(text)) for title, text in titled.items()}
        outputs = {title: "".join(OUTPUT.findall(text)) for title, text in titled.items()}
        return cls({number: script for number, script in blocks.items() if script}, outputs)

    def run(self, step: str, *, folder: Path, environment: Mapping[str, str]) -> str:
        """What the step's block printed. Fails with that, where the reader would see an error."""
        script = "".join(
            self.scripts[each] for each in dict.fromkeys((NAMES, step)) if each in self.scripts or each == step
        )
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
