"""The real nodedevices-agent as a separate process, on simulated devices from a file that the test edits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from support.kubelet import StandInKubelet
from support.patience import PATIENCE_SECONDS
from support.preloaded import Running, command, fork

NODE = "node-a"


class AgentProcess:
    """`start` and `kill` it any number of times on the same folders; the log of all its lives is in `log`.

    `folder` holds the devices' file, the log and (without a kubelet) the kubelet's folder. `fresh`: by a new
    interpreter, as in a pod (preloaded says when that matters), which has no `fixed`: as the agent's `main`.
    `variables`: of ours, which are taken of no `environment`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kubelet_dir: Path | None = None,
        devices: str = "profile: h100 x 8\n",
        arguments: tuple[str, ...] = ("--standalone",),
        node: str = NODE,
        environment: Mapping[str, str] | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        fresh: bool = False,
        **fixed: object,
    ) -> None:
        self.devices = folder / "devices.yaml"
        self.log = folder / "agent.log"
        kubelet = kubelet_dir or folder / "kubelet"
        self.plugin_folder = kubelet / "device-plugins"
        self.plugin_folder.mkdir(parents=True, exist_ok=True)
        self.state_file = self.plugin_folder / "nodedevices-state.json"
        self.edit(devices)
        self.arguments = [
            "--node-name",
            node,
            "--probe=simulated",
            f"--simulated={self.devices}",
            f"--kubelet-dir={kubelet}",
            "--http-address=127.0.0.1:0",
            f"--cdi-spec-dirs={folder / 'cdi'}",  # the machine's own is not ours to tidy up
            *arguments,
        ]
        self._environment = os.environ if environment is None else environment
        self.variables = {"NODEDEVICES_HEALTH_ADDRESS": "127.0.0.1:0", **variables}
        self._fresh = fresh
        self.fixed = {"operator_wait_seconds": 0.0, **fixed}  # most of these tests have no operator
        self.process: Running | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.log.exists():
            print(self.log.read_text())  # pytest shows it when the test fails

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def start(self, *extra: str) -> None:
        environment = {key: value for key, value in self._environment.items() if not key.startswith(("NODE", "KUBE"))}
        environment |= self.variables
        arguments = (*self.arguments, *extra)
        if self._fresh:
            self.process = command("nodedevices_plugin", arguments, environment, self.log)
        else:
            self.process = fork("nodedevices_plugin.agent", arguments, environment, self.log, fixed=self.fixed)

    def kill(self) -> None:
        """SIGKILL; its probe ends with it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait(PATIENCE_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def edit(self, text: str) -> None:
        """The devices from now on; replaced at once, as an editor does."""
        new = self.devices.with_suffix(".new")
        new.write_text(text)
        new.replace(self.devices)

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Its log lines with this message, oldest first."""
        found = []
        for line in self.log.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == message:
                found.append(entry)
        return found

    @property
    def probe_pid(self) -> int:
        return int(self.lines("probe started")[-1]["pid"])

    def freeze(self) -> None:
        """SIGSTOP. Its probe goes on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def get(self, path: str, *, seconds: float = 20) -> tuple[int, str]:
        """GET from its HTTP server: status and body. TimeoutError: no answer within these seconds."""
        port = self.lines("serving metrics and health")[-1]["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def until(self, condition: Callable[[], object], *, patience: float = PATIENCE_SECONDS) -> None:
        """Waits for it to hold; AssertionError with the log's end when it does not in time. To look may be to have the
        agent draw all its metrics: what takes long is looked at less often."""
        deadline, pause = time.monotonic() + patience, 0.02
        while not condition():
            tail = "\n".join(self.log.read_text().splitlines()[-15:])
            assert time.monotonic() < deadline, f"not within {patience} s; the agent's log ends:\n{tail}"
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, 0.25)


def agent_on(kubelet: StandInKubelet, folder: Path, **given: Any) -> AgentProcess:
    """One that registers with this kubelet; the rest as AgentProcess has it."""
    return AgentProcess(folder, kubelet_dir=kubelet.root, **given)
