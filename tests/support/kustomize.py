"""Renders our kustomizations with the kubectl at hand."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


def kubectl() -> str | None:
    """A kubectl, or None. KUBECTL in the environment decides when it is set."""
    return os.environ.get("KUBECTL") or shutil.which("kubectl")


def render(folder: Path, binary: str) -> list[dict[str, Any]]:
    """Every object of a kustomization, by kind and name."""
    return parsed(rendered(folder, binary))


def parsed(stream: str) -> list[dict[str, Any]]:
    """By libyaml: PyYAML's own parser takes ten times as long, and half a second for our CRDs."""
    objects = [one for one in yaml.load_all(stream, Loader=yaml.CSafeLoader) if one]
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))


def rendered(folder: Path, binary: str) -> str:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(
        [binary, "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def default_without_crds() -> Path:
    """The default overlay but for the CRDs: no component touches them, and they take most of the time."""
    folder = Path(tempfile.mkdtemp(prefix="nodedevices-manifests-"))
    atexit.register(shutil.rmtree, folder)
    base = ROOT / "manifests" / "base"
    made, overlay = (
        yaml.safe_load((each / "kustomization.yaml").read_text())
        for each in (base, ROOT / "manifests" / "overlays" / "default")
    )
    made["resources"].remove("../../crds")
    for file in (each for each in made["resources"] if each.endswith(".yaml")):
        shutil.copy(base / file, folder)
    made["resources"] = [
        each if each.endswith(".yaml") else os.path.relpath(base / each, folder.resolve()) for each in made["resources"]
    ]
    made["images"] = overlay["images"]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return folder
