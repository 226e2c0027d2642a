"""The version that upgrades are tested from: its code, its CRDs, its manifests, and what its images are made of.

A release, as soon as there is one. Until then it is a commit: 615a275, of 29 November 2026, before fields of both CRDs
went. Its agent is the first that leaves out what a CRD has no field for, so that it goes on under the CRDs of this
version; its policies and its state file have fields that this version does not know.

What is needed of it is an archive in tests/previous, which `tests/previous/make COMMIT` makes, and not the repository's
history: a checkout may be shallow, or unpacked from an archive, and a test must not depend on that.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cluster.rig.images import IMAGES as OF_NOW

COMMIT = "615a275"
ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "previous" / f"{COMMIT}.tar.xz"
IMAGES = tuple(replace(image, tag="previous") for image in OF_NOW)  # built from the same folders

Json = dict[str, Any]


@cache
def folder() -> Path:
    """Its files, as in the root of a checkout: always at the same place, so that what is compiled of them is kept."""
    target = Path(sys.prefix) / f"previous-{COMMIT}"
    if not target.exists():
        new = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{target.name}-"))
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(new, filter="data")
        try:
            new.rename(target)
        except OSError:  # another worker was faster
            shutil.rmtree(new)
    return target


def crds() -> dict[str, Json]:
    """Its CRDs, by kind."""
    found = (
        yaml.safe_load((folder() / "crds" / f"{name}.yaml").read_text()) for name in ("nodedevices", "devicepolicies")
    )
    return {each["spec"]["names"]["kind"]: each for each in found}


def environment() -> dict[str, str]:
    """For a Python that is to import its packages in place of those of this version."""
    places = (folder() / each for each in ("crds", "plugin", "operator"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
