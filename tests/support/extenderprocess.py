"""The real `nodedevices-operator extender` as a separate process, on loopback."""

from __future__ import annotations

import socket
from pathlib import Path

from support.operatorprocess import OperatorProcess


class ExtenderProcess(OperatorProcess):
    """Against one API server. `address`: what the scheduler calls."""

    def __init__(self, folder: Path, kubeconfig: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        super().__init__(folder, kubeconfig, f"--address={self.address}", *arguments, command="extender")
