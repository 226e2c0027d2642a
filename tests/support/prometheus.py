"""promtool, Prometheus and our alerts, where tests find them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from cluster.rig import binaries
from support.exposed import Samples
from support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
COMPONENT = ROOT / "manifests" / "components" / "prometheus"
RULES = COMPONENT / "rules.yaml"
METRIC = re.compile(r"\bnodedevices_\w+")


def program(name: str) -> str | None:
    """`promtool` or `prometheus`, as `make cluster-tools` has got them, or of the PATH."""
    unpacked = binaries.cache() / "prometheus" / name
    return str(unpacked) if unpacked.exists() else shutil.which(name)


def promtool(*arguments: str, stdin: str = "") -> str:
    """What it prints; AssertionError with it when it finds fault."""
    found = program("promtool")
    assert found is not None
    done = subprocess.run(
        [found, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> dict[str, dict[str, Any]]:
    """Our alerts, by name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def series(samples: Samples, **target: str) -> Iterator[Mapping[str, str]]:
    """As a promtool test has them as input: what was exposed, with the labels of the scrape, for an hour."""
    for name, found in samples.items():
        for labels, value in found.items():
            if name.startswith("nodedevices_") and not name.endswith("_bucket"):
                text = ",".join(f'{key}="{word}"' for key, word in {**target, **dict(labels)}.items())
                yield {"series": f"{name}{{{text}}}", "values": f"{value}x60"}


def firing(folder: Path, given: Sequence[Mapping[str, str]], expected: Mapping[str, int]) -> None:
    """Asserts how many alerts of each name fire, after an hour of these series."""
    test = {
        "interval": "1m",
        "input_series": list(given),
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "50m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": count} for name, count in sorted(expected.items())
                ],
            }
        ],
    }
    file = folder / "exposed.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))
