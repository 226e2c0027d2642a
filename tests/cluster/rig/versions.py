"""Which Kubernetes the cluster runs: the one that KUBERNETES names (`1.34`), or the default.

Each is a pair of files in `kube/`, `1.34.mod` and `1.34.sum`, which Go reads in the place of go.mod and go.sum. `pin`
writes them for one release. k8s.io/kubernetes replaces its staging modules by folders of its own repository; there each
is replaced by what was published of it with the same release, and etcd is the one of that release's client.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.rig.problem import RigError

MODULE = Path(__file__).resolve().parents[1] / "kube"
VARIABLE = "KUBERNETES"
DEFAULT = "1.37"
KUBERNETES, ETCD, COBRA = "k8s.io/kubernetes", "go.etcd.io/etcd", "github.com/spf13/cobra"


@dataclass(frozen=True)
class Version:
    minor: str  # 1.34

    @property
    def files(self) -> tuple[Path, Path]:
        """What Go reads in the place of go.mod and go.sum."""
        return MODULE / f"{self.minor}.mod", MODULE / f"{self.minor}.sum"

    @property
    def release(self) -> str:
        """Like `v1.34.4`."""
        return self._named(rf"{KUBERNETES} (v[0-9.]+)")

    @property
    def go(self) -> str:
        """The oldest Go that builds it."""
        return self._named(r"go ([0-9.]+)")

    def _named(self, line: str) -> str:
        modules, _ = self.files
        found = re.search(rf"^\s*{line}$", modules.read_text(), re.MULTILINE)
        if found is None:
            raise RigError(f"{modules} has no line like {line}")
        return found.group(1)


def known() -> list[Version]:
    """Every one that was pinned, the oldest first."""
    found = [Version(each.stem) for each in MODULE.glob("*.*.mod")]
    return sorted(found, key=lambda each: [int(part) for part in each.minor.split(".")])


def chosen(environment: Mapping[str, str] = os.environ) -> Version:
    """RigError where there is none of that name."""
    minor = environment.get(VARIABLE) or DEFAULT
    for each in known():
        if each.minor == minor:
            return each
    there = ", ".join(each.minor for each in known())
    raise RigError(f"{VARIABLE}={minor}: there is {there} (to add one: tests/cluster/cluster pin 1.38.0)")


def pin(release: str, go: str) -> Version:
    """Writes the module files of a release (`1.34.4`), from the Go modules that were published of it."""
    if not re.fullmatch(r"1\.\d+\.\d+", release):
        raise RigError(f"{release}: not a release like 1.34.4")
    version = Version(release.rpartition(".")[0])
    modules, _ = version.files
    downloaded = _json(go, "mod", "download", "-json", f"{KUBERNETES}@v{release}")
    modules.write_text(module_file(release, _json(go, "mod", "edit", "-json", downloaded["GoMod"])))
    _run(go, "mod", "tidy", f"-modfile={modules}")
    return version


def module_file(release: str, upstream: Mapping[str, Any]) -> str:
    """`upstream`: the release's own go.mod, as `go mod edit -json` prints it."""
    minor, _, rest = release.rpartition(".")
    required = {each["Path"]: each["Version"] for each in upstream["Require"]}
    staged = [each["Old"]["Path"] for each in upstream["Replace"] if each["New"]["Path"].startswith("./staging/")]
    published = f"v0.{minor.removeprefix('1.')}.{rest}"
    lines = [
        f"// Written by: tests/cluster/cluster pin {release}",
        "module nodedevices.io/tests/cluster/kube",
        f"go {upstream['Go']}",
        "require (",
        f"\t{COBRA} {required[COBRA]}",
        f"\t{ETCD}/server/v3 {required[f'{ETCD}/client/v3']}",
        f"\t{KUBERNETES} v{release}",
        ")",
        "replace (",
        *(f"\t{each} => {each} {published}" for each in staged),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _json(*command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(*command))
    return found


def _run(*command: str) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    done = subprocess.run(command, cwd=MODULE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RigError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
