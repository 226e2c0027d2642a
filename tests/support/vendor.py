"""The vendor's plugin of vendorplugin.py, as a process beside a stand-in kubelet or as a pod on a real node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = Path(__file__).with_name("vendorplugin.py")
PLUGINS = "/var/lib/kubelet/device-plugins"
UNHEALTHY = "/tmp/unhealthy"  # in a memory volume of its pod


class VendorProcess:
    """Runs inside a `with`; `unhealthy(...)` sets which ids it calls so."""

    def __init__(self, folder: Path, plugin_folder: Path, ids: Sequence[str], *arguments: str) -> None:
        self.log = folder / "vendor.log"
        self._unhealthy = folder / "vendor-unhealthy"
        self._argv = [
            sys.executable,
            "-u",
            str(PROGRAM),
            f"--ids={','.join(ids)}",
            f"--folder={plugin_folder}",
            f"--unhealthy={self._unhealthy}",
            *arguments,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        print(self.log.read_text())  # pytest shows it when the test fails

    def unhealthy(self, *ids: str) -> None:
        new = self._unhealthy.with_suffix(".new")
        new.write_text("\n".join(ids))
        new.replace(self._unhealthy)

    def end(self) -> None:
        """SIGTERM, as a pod's end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)


def pod(
    name: str, node: str, ids: Sequence[str], *, namespace: str, image: str, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """It as a pod: any image with Python and grpcio will do; what it calls Unhealthy is in the file UNHEALTHY there."""
    flags = [f"--ids={','.join(ids)}", f"--unhealthy={UNHEALTHY}", *arguments]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "vendor"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "plugin",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-u", "-c", PROGRAM.read_text(), *flags],
                    "securityContext": {
                        "runAsUser": 0,
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "device-plugins", "mountPath": PLUGINS},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [
                {"name": "device-plugins", "hostPath": {"path": PLUGINS, "type": "Directory"}},
                {"name": "tmp", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }
