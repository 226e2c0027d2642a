"""NVIDIA's recorded answers as values: golden/*.json, one case a file. README.md is the format's own description."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MANIFEST = FOLDER / "SHA256SUMS"


@dataclass(frozen=True)
class Vector:
    """One case. `raw` is the golden as it was recorded."""

    raw: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["case"])

    @property
    def input(self) -> Mapping[str, Any]:
        return dict(self.raw["input"])

    @property
    def inventory(self) -> Mapping[str, Any]:
        return dict(self.raw["inventory"])

    @property
    def registered(self) -> bool:
        return bool(self.raw["outcome"] == "registered")

    @property
    def resources(self) -> list[dict[str, Any]]:
        return list(self.raw["resources"])

    @property
    def then(self) -> list[dict[str, Any]]:
        return list(self.raw.get("then", ()))

    @property
    def watch_seconds(self) -> float:
        """How long after the first list the second one was recorded; 0: there is none."""
        return max(
            (float(each["after_watch"]["seconds"]) for each in self.resources if "after_watch" in each), default=0
        )

    @cached_property
    def quirks(self) -> frozenset[str] | None:
        """The parts in which NVIDIA's answer is a defect; None: the whole case."""
        quirk = self.raw.get("quirk")
        if quirk is None:
            return frozenset()
        parts = frozenset(part.strip() for part in quirk["part"].split(",") if part.strip())
        return parts or None

    def quirky(self, part: str) -> bool:
        return self.quirks is None or part in self.quirks

    @property
    def ids_are_indices(self) -> bool:
        flags = self.raw.get("effective_config", {}).get("flags", {})
        return bool(flags.get("plugin", {}).get("deviceIDStrategy") == "index")

    @cached_property
    def gpu_of(self) -> Mapping[str, str]:
        """A GPU's or MIG device's uuid -> the GPU's uuid."""
        found = {}
        for device in self.inventory["devices"]:
            found[device["uuid"]] = device["uuid"]
            found |= {mig["uuid"]: device["uuid"] for mig in device.get("mig_devices", ())}
        return found

    @cached_property
    def struck(self) -> frozenset[str]:
        """GPUs that fall off the bus."""
        return frozenset(each["uuid"] for each in self.inventory["devices"] if "lost_after_ms" in each.get("fault", {}))

    @property
    def unhealthy_after_watch(self) -> set[str]:
        """The ids of all resources that are to be Unhealthy after the faults."""
        lists = [each["after_watch"]["devices"] for each in self.resources if "after_watch" in each]
        return {id_ for recorded in lists for id_ in self.unhealthy(recorded)}

    def unhealthy(self, recorded: Sequence[Mapping[str, Any]]) -> set[str]:
        """The ids that are to be Unhealthy of a list that was recorded after the faults."""
        if not self.quirky("after_watch"):
            return {each["id"] for each in recorded if each["health"] != "Healthy"}
        right = set(self.raw["quirk"]["right_unhealthy"])
        bases = {each["id"]: each["id"].partition("::")[0] for each in recorded}
        return {id_ for id_, base in bases.items() if base in right or self.gpu_of[base] in right}

    def score(self, ids: frozenset[str]) -> int:
        """NVIDIA's own measure of a set of whole GPUs: the sum of its pairs' link scores."""
        uuids = {each["index"]: each["uuid"] for each in self.inventory["devices"]}
        return sum(link["score"] for link in self.inventory["links"] if {uuids[link["a"]], uuids[link["b"]]} <= ids)


def every() -> dict[str, Vector]:
    vectors = [Vector(json.loads(path.read_text())) for path in sorted((FOLDER / "golden").glob("*.json"))]
    return {each.name: each for each in vectors}


def manifest() -> dict[str, str]:
    """File -> SHA-256, as the data came with it."""
    pairs = (line.split(maxsplit=1) for line in MANIFEST.read_text().splitlines())
    return {name.strip().removeprefix("./"): digest for digest, name in pairs}


def digests() -> dict[str, str]:
    """The same of the files that are here."""
    files = [FOLDER / "README.md", FOLDER / "cases.yaml", *sorted((FOLDER / "golden").iterdir())]
    return {str(path.relative_to(FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
