"""Kubernetes' example of a DRA driver, sigs.k8s.io/dra-example-driver, built from its Go module, as a process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.rig import binaries

MODULE, VERSION = "sigs.k8s.io/dra-example-driver", "v0.4.0"
PROGRAM = "dra-example-kubeletplugin"
GO = "1.26.0"
BUILD_SECONDS = 1800
DRIVER = "gpu.example.com"


def program() -> Path:
    """The program, built where it is not yet: some minutes."""
    place = binaries.cache() / "bin" / f"{PROGRAM}-{VERSION}-{os.uname().machine}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{PROGRAM}.lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            # `go install` of a version asks the module proxy for all versions, which not every proxy has.
            Path(folder, "go.mod").write_text(f"module example\n\ngo {GO}\n\nrequire {MODULE} {VERSION}\n")
            new = place.with_suffix(".new")
            command = [binaries.find_go(GO), "build", "-trimpath", "-ldflags", "-s -w", "-o", str(new)]
            environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
            package = f"{MODULE}/cmd/{PROGRAM}"
            subprocess.run([*command, package], cwd=folder, env=environment, check=True, timeout=BUILD_SECONDS)
            new.rename(place)
    return place


@dataclass(frozen=True)
class ExampleDriver:
    folder: Path

    @property
    def registry(self) -> Path:
        return self.folder / "registry"

    @property
    def cdi(self) -> Path:
        return self.folder / "cdi"

    @contextlib.contextmanager
    def running(self, kubeconfig: Path, node: str) -> Iterator[None]:
        plugins = self.folder / "plugins"
        for path in (self.registry, self.cdi, plugins):
            path.mkdir()
        flags = {
            "node-name": node,
            "driver-name": DRIVER,
            "num-devices": "4",
            "cdi-root": self.cdi,
            "kubelet-registrar-directory-path": self.registry,
            "kubelet-plugins-directory-path": plugins,
            "kubeconfig": kubeconfig,
        }
        with (self.folder / "log").open("wb") as log:
            argv = [str(program()), *(f"--{name}={value}" for name, value in flags.items())]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.terminate()
                process.wait()
