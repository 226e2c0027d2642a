"""The real nodedevices-operator as a separate process."""

from __future__ import annotations

import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from support import access
from support.kubectl import Kubectl, wait_until
from support.patience import CLUSTER_PATIENCE_SECONDS
from support.preloaded import Running, command, fork

NAMESPACE = "nodedevices-system"
RBAC = Path(__file__).parents[2] / "manifests" / "base" / "operator" / "rbac.yaml"


class OperatorProcess:
    """`nodedevices-operator` against one API server; logs are kept in the folder and shown when something fails.

    `fresh`: by a new interpreter, as in a pod (preloaded says when that matters). `command`: another than `run`.
    Without `leader_elect` it is the only one: the next need not wait for the Lease of one that was killed. `fixed`: as
    the operator's `main`.
    """

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        *arguments: str,
        fresh: bool = False,
        command: str = "run",
        leader_elect: bool = False,
        **fixed: float,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.log = folder / "operator.log"
        self._arguments = [
            command,
            f"--kubeconfig={kubeconfig}",
            f"--http-address=127.0.0.1:{self.port}",
            "--log-level=debug",
            *([f"--leader-elect={str(leader_elect).lower()}"] if command == "run" else []),
            *arguments,
        ]
        self._fresh = fresh
        self._fixed = fixed
        self._process: Running | None = None

    def start(self, *, ready: bool = True) -> Self:
        assert not self.running, "`with` starts it; a second one would outlive the test"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NODEDEVICES_")}
        environment |= {"NODEDEVICES_HEALTH_ADDRESS": "127.0.0.1:0", "NODEDEVICES_LOG_FORMAT": "json"}
        if self._fresh:
            self._process = command("nodedevices_operator", self._arguments, environment, self.log, fixed=self._fixed)
        else:
            self._process = fork("nodedevices_operator.main", self._arguments, environment, self.log, fixed=self._fixed)
        if ready:
            wait_until("the operator is ready", lambda: self.get("/readyz")[0] == 200)
        return self

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one page; ConnectionError when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    def metric(self, name: str) -> float:
        """The sum of a metric's samples of exactly that name, whatever their labels."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(CLUSTER_PATIENCE_SECONDS)
        finally:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ended(self) -> int | None:
        """The exit code, once it has ended."""
        assert self._process is not None
        return self._process.poll()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        return self.log.read_text()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            error.add_note("operator: " + self.said()[-6000:])


class ExtenderProcess(OperatorProcess):
    """Against one API server. `address`: what the scheduler calls."""

    def __init__(self, folder: Path, kubeconfig: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        super().__init__(folder, kubeconfig, f"--address={self.address}", *arguments, command="extender")


def service_account(kubectl: Kubectl, folder: Path, *, without: str = "") -> Path:
    """A kubeconfig of the operator's own service account, with exactly the permissions that its manifest gives.

    `without` leaves out the rule of that resource, such as nodes/status.
    """
    documents = [it for it in yaml.safe_load_all(RBAC.read_text()) if it]
    for document in documents:
        if document["kind"] == "ServiceAccount":
            document["metadata"]["namespace"] = NAMESPACE
        if document["kind"] == "ClusterRole":
            document["rules"] = [rule for rule in document["rules"] if without not in rule["resources"]]
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *documents)
    token = kubectl.token("nodedevices-operator", NAMESPACE, seconds=2 * 3600)
    return access.kubeconfig(kubectl.kubeconfig, folder / "operator.kubeconfig", token)
