"""Renders our kustomizations with the kubectl at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def kubectl() -> str | None:
    """A kubectl, or None. KUBECTL in the environment decides when it is set."""
    return os.environ.get("KUBECTL") or shutil.which("kubectl")


def render(folder: Path, binary: str) -> list[dict[str, Any]]:
    """Every object of a kustomization, by kind and name."""
    done = subprocess.run(
        [binary, "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))
