"""The kubelet's own device manager and topology manager in a process: they choose ids for pods as a kubelet does, and
ask the test in the place of a device plugin. tests/cluster/devicemanager has the program and the conversation."""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cluster.rig import binaries, versions
from cluster.rig.problem import RigError
from support.patience import CLUSTER_PATIENCE_SECONDS

SOURCE = versions.MODULE.parent / "devicemanager"
BUILD_SECONDS = 600  # some seconds, as all of it was compiled for the kubelet


class Plugin(Protocol):
    """What a device plugin answers; either raises to refuse, with a text for the pod's owner."""

    def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Iterable[str]: ...

    def allocate(self, resource: str, ids: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class Container:
    name: str
    limits: Mapping[str, int]
    kind: str = ""  # init, sidecar


@dataclass(frozen=True)
class Listed:
    """An id, as ListAndWatch has it."""

    id: str
    healthy: bool = True
    nodes: tuple[int, ...] = ()


Held = dict[str, dict[str, list[str]]]  # container -> resource -> ids


class Refused(Exception):  # noqa: N818 - reads as what happened
    """A pod was not admitted; the kubelet's message."""


def program() -> Path:
    """The program, built where it is not yet. Raises RigError where the kubelet itself was not built, or is another."""
    if (minor := versions.chosen().minor) != versions.DEFAULT:
        raise RigError(f"the kubelet's device manager is called as in Kubernetes {versions.DEFAULT}, not in {minor}")
    digest = hashlib.sha256()
    for path in (*versions.chosen().files, *sorted(SOURCE.iterdir())):
        digest.update(path.read_bytes())
    place = binaries.cache() / "bin" / f"devicemanager-{digest.hexdigest()[:16]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".devicemanager-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            binaries.need()
            new = place.with_suffix(".new")
            # As the kubelet was built, so that what was compiled then is used again.
            command, environment = binaries.go_build(".", new)
            subprocess.run(command, cwd=SOURCE, env=environment, check=True, timeout=BUILD_SECONDS)
            new.rename(place)
    return place


class DeviceManager:
    """A kubelet's; `policy` is its topologyManagerPolicy, on a machine of two NUMA nodes."""

    def __init__(self, folder: Path, plugin: Plugin, *, policy: str = "none") -> None:
        self._start = {"do": "start", "folder": str(folder), "policy": policy, "nodes": 2}
        self._plugin = plugin
        self._process = subprocess.Popen(
            [program()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._call(self._start)

    def restart(self) -> None:
        """As a kubelet's restart: what it knows then is its checkpoint, and the pods that have not ended."""
        self._call(self._start)

    def offer(self, resource: str, devices: Iterable[Listed]) -> None:
        """A ListAndWatch message."""
        listed = [{"id": each.id, "healthy": each.healthy, "nodes": each.nodes} for each in devices]
        self._call({"do": "list", "resource": resource, "devices": listed})

    def admit(self, pod: str, containers: Sequence[Container]) -> Held:
        """What each container has. Raises Refused."""
        said = [{"name": each.name, "kind": each.kind, "limits": dict(each.limits)} for each in containers]
        held: Held = self._call({"do": "admit", "pod": pod, "containers": said})["held"]
        return held

    def end(self, *pods: str) -> None:
        self._call({"do": "end", "pods": pods})

    def _call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._say(request)
        while True:
            assert self._process.stdout is not None
            said: dict[str, Any] = json.loads(self._process.stdout.readline())
            if said.get("done"):
                if said["error"]:
                    raise Refused(said["error"])
                return said
            try:
                self._say({"ids": self._answer(said)})
            except Exception as error:  # the plugin's answer to the kubelet, which goes on
                self._say({"error": str(error)})

    def _answer(self, question: Mapping[str, Any]) -> list[str]:
        resource = question["resource"]
        if question["call"] == "allocate":
            self._plugin.allocate(resource, question["ids"])
            return []
        available, must = question["available"], question.get("must", ())
        return list(self._plugin.prefer(resource, available, must, question["size"]))

    def _say(self, what: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> DeviceManager:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(timeout=CLUSTER_PATIENCE_SECONDS)


if __name__ == "__main__":  # make cluster-tools: no test waits for a build
    try:
        print(program())
    except RigError as error:
        print(error)
