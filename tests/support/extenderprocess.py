"""The real `nodedevices-operator extender` as a separate process, on loopback."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from support.kubectl import wait_until
from support.preloaded import Running, fork

START_SECONDS = 60


class ExtenderProcess:
    """Against one API server; its log is kept in the folder and shown when something fails."""

    def __init__(self, folder: Path, kubeconfig: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.log = folder / "extender.log"
        self._arguments = [
            "extender",
            f"--kubeconfig={kubeconfig}",
            f"--address={self.address}",
            "--http-address=127.0.0.1:0",
            "--health-address=127.0.0.1:0",
            "--log-format=json",
            "--log-level=debug",
            *arguments,
        ]
        self._process: Running | None = None

    def start(self) -> ExtenderProcess:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NODEDEVICES_")}
        self._process = fork("nodedevices_operator.main", self._arguments, environment, self.log)
        wait_until("the extender is ready", self.ready, seconds=START_SECONDS)
        return self

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/readyz", timeout=20) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> ExtenderProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            error.add_note("extender: " + self.log.read_text()[-6000:])
