"""`kubectl nodedevices` beside a fleet: the real command reads 5,000 NodeDevices, page by page, and shows them.

The API server is a stand-in that has the pages ready and compresses them, as a real one does; an object is as large as
real ones are (extender.py's). CPU and memory are of the command's process, its start included. The floor is a Python
process that reads the same pages over HTTP and decodes their JSON, page by page, and keeps and shows nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from support.recorded_api import NODE_DEVICES, recorded_api

from benchmarks.extender import GPUS, node_of
from benchmarks.process import memory_mib
from benchmarks.recorded import kubeconfig
from benchmarks.table import Row

NODES_BY_DEFAULT = 5000
PAGE = 500
RUNS = 5
WINDOW_SECONDS = 0.01
TARGET_SECONDS = 1.0
FLOOR_IS = "a process that decodes the same pages"
COMMANDS = {"nodes": ("nodes",), "devices": ("devices",), "devices as JSON": ("devices", "-o", "json")}
FLOOR = """
import gc, http.client, json, sys, zlib
gc.disable()
connection, more = http.client.HTTPConnection(sys.argv[1].rpartition("/")[2]), ""
while True:
    connection.request("GET", sys.argv[2] + "?limit=500" + more, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    data = answer.read()
    if answer.getheader("Content-Encoding") == "gzip":
        data = zlib.decompress(data, wbits=16 + zlib.MAX_WBITS)
    token = json.loads(data)["metadata"].get("continue")
    if not token:
        break
    more = "&continue=" + token
"""


@dataclass(frozen=True)
class Run:
    """One process, from its start to its end."""

    cpu_seconds: float
    peak_mib: float
    after_first_page_seconds: float  # from when it asked for that, so that the page's way is in it


class Pages(list[bytes]):
    """Answers to a list; knows when the first one was asked for last."""

    first_at = 0.0

    def __getitem__(self, at: Any) -> Any:
        if at == 0:
            self.first_at = time.monotonic()
        return super().__getitem__(at)


def measure(nodes: int = NODES_BY_DEFAULT) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as name, recorded_api() as api:
        pages = pages_of(nodes)
        api.pages[NODE_DEVICES] = pages
        flags = ("--kubeconfig", str(kubeconfig(Path(name), api.url)))
        program = str(Path(sys.executable).with_name("kubectl-nodedevices"))
        often = range(RUNS if nodes >= 100 else 1)  # of fewer nothing is learned but that it works
        least = [run(pages, (sys.executable, "-c", FLOOR, api.url, NODE_DEVICES)) for _ in often]
        rows = []
        for what, arguments in COMMANDS.items():
            runs = [run(pages, (program, *arguments, *flags)) for _ in often]
            rows += compared(f"{nodes:,} nodes of {GPUS} GPUs, {what}", runs, least)
        return rows


def compared(what: str, runs: Sequence[Run], least: Sequence[Run]) -> list[Row]:
    return [
        Row(what=f"{what}: CPU, the least", measured=min(one.cpu_seconds for one in runs), unit="s",
            floor=min(one.cpu_seconds for one in least), floor_is=FLOOR_IS),
        Row(what=f"{what}: first page -> all is shown, the least", unit="s", target=TARGET_SECONDS,
            measured=min(one.after_first_page_seconds for one in runs),
            floor=min(one.after_first_page_seconds for one in least), floor_is=FLOOR_IS),
        Row(what=f"{what}: memory at most, median", measured=median(one.peak_mib for one in runs), unit="MiB",
            floor=median(one.peak_mib for one in least), floor_is=FLOOR_IS),
    ]  # fmt: skip


def pages_of(nodes: int) -> Pages:
    """As an API server answers, 500 objects at a time."""
    made = Pages()
    for start in range(0, nodes, PAGE):
        end = min(start + PAGE, nodes)
        about = {"resourceVersion": "10"} | ({"continue": str(len(made) + 1)} if end < nodes else {})
        items = [node_of(at) for at in range(start, end)]
        made.append(orjson.dumps({"kind": "NodeDevicesList", "metadata": about, "items": items}))
    return made


def run(pages: Pages, command: Sequence[str]) -> Run:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak_mib = 0.0
    while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_mib = max(peak_mib, memory_mib(process.pid, "VmHWM"))
        time.sleep(WINDOW_SECONDS)
    ended = time.monotonic()
    _, status, used = waited
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}")
    return Run(used.ru_utime + used.ru_stime, peak_mib, ended - pages.first_at)
