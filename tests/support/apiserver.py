"""A real kube-apiserver for tests: etcd and API server on loopback, cluster-admin's kubeconfig, RBAC and admission on.

No root, no nodes, no controllers: nobody makes a namespace's service account or collects garbage, so a test creates
what it needs; tokens come by TokenRequest. The processes are this process's children and end with it, even by kill -9.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.rig import binaries, layout
from cluster.rig.control import Control
from cluster.rig.problem import RigError
from nodedevices_api import GROUP
from support.patience import CLUSTER_PATIENCE_SECONDS


class ApiServer:
    """`folder` holds data, keys and logs; it is the caller's to remove. Usable as a context manager. `gates`: feature
    gates that differ from the release's."""

    def __init__(self, folder: Path, *, gates: str = "") -> None:
        self._binaries = binaries.need()
        self._layout = layout.make("apiserver", folder.absolute(), 0)
        self._control = Control(self._layout, self._binaries, mortal=True, gates=gates)

    @property
    def kubeconfig(self) -> Path:
        """cluster-admin's, complete in itself."""
        return self._layout.kubeconfig

    @property
    def kubectl(self) -> Path:
        """The kubectl of the same release."""
        return Path(self._binaries["kubectl"])

    @property
    def url(self) -> str:
        return self._layout.api_url

    @property
    def logs(self) -> Path:
        return self._layout.logs

    @property
    def audit_log(self) -> Path:
        return self._layout.audit_log

    def run(self, *args: str, stdin: str | None = None) -> str:
        """Output of one kubectl command; CalledProcessError when it fails, with stderr in its notes."""
        try:
            return subprocess.run(
                [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), *args],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=CLUSTER_PATIENCE_SECONDS,
                check=True,
            ).stdout
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def start(self) -> None:
        """Both processes, until the API server is ready; its data are new."""
        try:
            self._control.identities()
            self._control.start_etcd()
            self.start_apiserver()
        except RigError:
            self.stop()
            raise

    def start_apiserver(self) -> None:
        """The API server again, at the same address, with the data that etcd kept."""
        self._control.start_apiserver()
        self._control.wait_for_apiserver()

    def stop_apiserver(self) -> None:
        """kill -9; etcd goes on."""
        self._control.stop("kube-apiserver")

    def lose(self, resource: str, name: str) -> None:
        """While no API server runs: a cluster-scoped object is gone from etcd, and so is all history. No watch delivers
        the deletion, and each that goes on from before is refused (410, Expired)."""
        key = base64.b64encode(f"/registry/{GROUP}/{resource}/{name}".encode()).decode()
        deleted = self._etcd("kv/deleterange", {"key": key})
        assert deleted.get("deleted") == "1", deleted
        self._etcd("kv/compaction", {"revision": deleted["header"]["revision"]})

    def _etcd(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._layout.etcd_port}/v3/{path}", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=CLUSTER_PATIENCE_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def restart(self) -> None:
        self.stop_apiserver()
        self.start_apiserver()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Inside, it takes connections and answers nothing."""
        child = self._control.children["kube-apiserver"]
        child.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            child.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Both, for good."""
        self._control.stop("kube-apiserver")
        self._control.stop("etcd")

    def __enter__(self) -> ApiServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
