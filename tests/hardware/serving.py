"""The agent beside the stand-in kubelet: what it registers and grants, and NVIDIA's own plugin beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.json_format import MessageToDict
from hardware import processes
from hardware.processes import GPU
from hardware.step import Json, Report, Request, SkippedError, seconds_since
from support.kubelet import StandInKubelet

PLUGIN_FOLDER = "/var/lib/kubelet/device-plugins"  # where NVIDIA's plugin makes its socket, whatever its flags say
TOOLKIT = (Path("/etc/cdi"), Path("/var/run/cdi"))
SUFFIXES = (".json", ".yaml")
CDI = ("--device-list-strategy=envvar,cdi-cri", "--pass-device-specs")


async def run(report: Report, request: Request) -> None:
    processes.need_gpu()
    await report.part_of("by variables", granted(request, "agent-variables.log"))
    await report.part_of("by CDI, with the libraries", granted(request, "agent-cdi.log", *CDI))
    alone = granted(request, "agent-cdi-nodes.log", *CDI, NODEDEVICES_CDI_WITHOUT_LIBRARIES="true")
    await report.part_of("by CDI, with device nodes alone", alone)
    await report.part_of("NVIDIA's plugin", beside(request))


def _resources(kubelet: StandInKubelet) -> Json:
    return {
        name: {"healthy": sorted(view.healthy), "unhealthy": sorted(view.unhealthy), "NUMA": _numa(view.devices)}
        for name, view in kubelet.views.items()
    }


def _numa(devices: dict[str, Any]) -> Json:
    return {id_: [node.ID for node in device.topology.nodes] for id_, device in devices.items()}


async def granted(request: Request, name: str, *arguments: str, **variables: str) -> Json:
    """Run an agent with these arguments: the time to Register and to the list, and what a kubelet gets of it."""
    log = request.out / name
    async with StandInKubelet() as kubelet:
        began = time.monotonic()
        async with processes.agent(kubelet, log, *arguments, **variables):
            await kubelet.until(lambda: kubelet.registered or _refused(log), patience=request.start_seconds)
            if not kubelet.registered:
                raise SkippedError(_refused(log))
            registered = seconds_since(began)
            await kubelet.until(
                lambda: any(view.healthy for view in kubelet.views.values()), patience=request.start_seconds
            )
            listed = seconds_since(began)
            resource = next(resource for resource, view in kubelet.views.items() if view.healthy)
            return {
                "seconds to Register": registered,
                "seconds to the list": listed,
                "resources": _resources(kubelet),
                **await answers(kubelet, resource),
                "CDI": {str(path): cdi(path) for path in _specifications(kubelet.root / "cdi")},
            }


def _refused(log: Path) -> str:
    """Return why the agent offers nothing by the configuration it was given, as its log says it."""
    for text in log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(text)
            if "nothing is offered" in str(entry.get("message", "")):
                return f"{entry['event']}: {entry['message']}"
    return ""


async def answers(kubelet: StandInKubelet, name: str) -> Json:
    """Return what the plugin of this resource prefers and grants."""
    ids = sorted(kubelet.views[name].healthy)
    found: Json = {"resource": name, "ids": ids}
    for count in sorted({1, len(ids) // 2, len(ids)} - {0}):
        try:
            found[f"prefers, of {len(ids)}, {count}"] = await kubelet.prefer(name, ids, count)
        except Exception as error:
            found[f"prefers, of {len(ids)}, {count}"] = f"refused: {error}"
    began = time.monotonic()
    answer = await kubelet.allocate_ids(name, ids[:1])
    found["Allocate milliseconds"] = round((time.monotonic() - began) * 1000, 1)
    found["Allocate"] = MessageToDict(answer)
    found["missing"] = missing(
        [device.host_path for device in answer.devices] + [mount.host_path for mount in answer.mounts]
    )
    return found


def _specifications(ours: Path) -> list[Path]:
    """Return the agent's files, and those of NVIDIA's container toolkit."""
    return [path for folder in (ours, *TOOLKIT) for path in sorted(folder.glob("*")) if path.suffix in SUFFIXES]


def cdi(path: Path) -> Json:
    """Return what a specification has, and which nodes and files it names that do not exist."""
    document = yaml.safe_load(path.read_text())
    devices = document.get("devices") or []
    edits = [document.get("containerEdits") or {}, *(device["containerEdits"] for device in devices)]
    nodes = [node.get("hostPath") or node["path"] for edit in edits for node in edit.get("deviceNodes", ())]
    files = [mount["hostPath"] for edit in edits for mount in edit.get("mounts", ())]
    return {
        "kind": document["kind"],
        "devices": [device["name"] for device in devices],
        "device nodes": len(set(nodes)),
        "files": len(set(files)),
        "no device node": [node for node in dict.fromkeys(nodes) if not _is_device(Path(node))],
        "missing": missing(files),
    }


def missing(paths: list[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if not Path(path).exists()]


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


async def beside(request: Request) -> Json:
    """Run NVIDIA's plugin on a kubelet of its own, in a mount namespace where its folder is the kubelet's."""
    if not request.nvidia_plugin:
        raise SkippedError("no --nvidia-plugin PATH")
    if os.geteuid():
        raise SkippedError("needs root: it makes its socket in /var/lib/kubelet/device-plugins alone")
    if not os.access(request.nvidia_plugin, os.X_OK) or shutil.which("unshare") is None:
        raise SkippedError(f"{request.nvidia_plugin} is no program, or there is no unshare")
    async with StandInKubelet() as kubelet:
        began = time.monotonic()
        async with _nvidia(request, kubelet.plugin_folder):
            await kubelet.until(lambda: kubelet.allocatable(GPU) > 0, patience=request.start_seconds)
            seconds = seconds_since(began)
            return {"seconds to the list": seconds, **await answers(kubelet, GPU)}


@contextlib.asynccontextmanager
async def _nvidia(request: Request, folder: Path) -> AsyncIterator[None]:
    script = 'mkdir -p "$1" && mount --bind "$2" "$1" && shift 2 && exec "$@"'
    with (request.out / "nvidia-plugin.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"),
            *(PLUGIN_FOLDER, str(folder), request.nvidia_plugin, "--pass-device-specs"),
            stdout=log,
            stderr=log,
        )
    with _ending(process):
        yield
    await process.wait()


@contextlib.contextmanager
def _ending(process: asyncio.subprocess.Process) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
