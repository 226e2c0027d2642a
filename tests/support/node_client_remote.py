"""The far end of `support.node_client`: runs on a node, in a pod or its namespaces, with only Python and grpcio.

It is sent as text (`python3 -c`), so it stands alone. One JSON request a line on standard input, one JSON answer a
line on standard output; lines with "event" come on their own. It writes the simulated devices file, which is the only
way a fault enters, and reads what the kubelet's PodResources knows. The few messages needed are decoded here by hand,
so that nothing of what is tested takes part in testing it. When the other end closes, it ends.
"""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

FILE = Path("/var/lib/nodedevices/simulated.yaml")
STATE = Path("/var/lib/kubelet/device-plugins/nodedevices-state.json")  # the agent's, which outlives it
SOCKET = "unix:///var/lib/kubelet/pod-resources/kubelet.sock"
CALL_SECONDS = 5
WATCH_SECONDS = 0.04  # the kubelet answers 100 calls a second, shared by everybody on the node
CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
RECORDS = Path("/var/lib/kubelet/plugins/nodedevices.io/claims")  # of claims that the driver has prepared
CDI = Path("/var/run/cdi")
GPU_NODE = re.compile(r"nvidia\d+")
CGROUP = re.compile(r"/pod([0-9a-f-]{36})/([0-9a-f]{64})")  # a pod's uid, a container's id

lock = threading.Lock()


def say(line: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protobuf message: bytes for length-delimited fields, int for varints."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 2:
            size, at = varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        else:
            value, at = varint(data, at)
            yield key >> 3, value


def numbers(data: bytes, number: int) -> list[int]:
    """A repeated integer, packed as proto3 writes it."""
    found = []
    for which, packed in fields(data):
        at = 0
        while which == number and at < len(packed):
            value, at = varint(packed, at)
            found.append(value)
    return found


def texts(data: bytes, number: int) -> list[str]:
    return [value.decode() for which, value in fields(data) if which == number]


def device(data: bytes) -> dict[str, Any]:
    """ContainerDevices: resource_name = 1, device_ids = 2, topology = 3 {nodes = 1 {ID = 1}}."""
    numa = [
        dict(fields(node)).get(1, 0)
        for which, topology in fields(data)
        if which == 3
        for number, node in fields(topology)
        if number == 1
    ]
    return {"resource": "".join(texts(data, 1)), "ids": texts(data, 2), "numa": numa}


def claim(data: bytes) -> dict[str, Any]:
    """DynamicResource: claim_name = 2, claim_resources = 4 {cdi_devices = 1 {name = 1}, driver_name = 2, pool_name = 3,
    device_name = 4}."""
    parts = [value for which, value in fields(data) if which == 4]
    return {
        "name": "".join(texts(data, 2)),
        "devices": [["".join(texts(part, number)) for number in (2, 3, 4)] for part in parts],
        "cdi": [name for part in parts for which, given in fields(part) if which == 1 for name in texts(given, 1)],
    }


def call(method: str) -> bytes:
    with grpc.insecure_channel(SOCKET) as channel:
        name = f"/v1.PodResourcesLister/{method}"
        rpc = channel.unary_unary(name, request_serializer=bytes, response_deserializer=bytes)
        for _ in range(100):
            try:
                answer: bytes = rpc(b"", timeout=CALL_SECONDS)
                return answer
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:  # another client on the node calls a lot
                    raise
                time.sleep(0.05)
    raise TimeoutError(f"{method}: rejected by the kubelet's rate limit for 5 s")


def allocatable() -> dict[str, dict[str, list[int]]]:
    """resource -> id -> NUMA nodes, as GetAllocatableResources shows them: healthy ids only."""
    found: dict[str, dict[str, list[int]]] = {}
    for number, value in fields(call("GetAllocatableResources")):
        if number == 1:
            one = device(value)
            found.setdefault(one["resource"], {}).update(dict.fromkeys(one["ids"], one["numa"]))
    return found


def holders() -> list[dict[str, Any]]:
    """Every container with devices or claims: pod_resources = 1 {name, namespace, containers = 3 {name, devices = 2,
    cpu_ids = 3, dynamic_resources = 5}}."""
    found = []
    for number, pod in fields(call("List")):
        if number != 1:
            continue
        for which, container in fields(pod):
            if which != 3:
                continue
            devices = [device(value) for at, value in fields(container) if at == 2]
            claims = [claim(value) for at, value in fields(container) if at == 5]
            if devices or claims:
                found.append(
                    {
                        "pod": "".join(texts(pod, 1)),
                        "namespace": "".join(texts(pod, 2)),
                        "container": "".join(texts(container, 1)),
                        "devices": devices,
                        "cpus": numbers(container, 3),
                        "claims": claims,
                    }
                )
    return found


def watch() -> None:
    """Says what is allocatable, now and at each change, until the process ends."""
    last: object = None
    while True:
        try:
            now = allocatable()
        except (grpc.RpcError, TimeoutError):
            now = {}  # the kubelet is away
        if now != last:
            say({"event": "allocatable", "resources": now})
            last = now
        time.sleep(WATCH_SECONDS)


def sample(every: float) -> None:
    """Says what is allocatable and, read just after it, who holds what; now and at each change, until the end."""
    last: object = None
    while True:
        try:
            now = {"allocatable": allocatable(), "holders": holders()}
        except (grpc.RpcError, TimeoutError):
            now = {"allocatable": {}, "holders": []}  # the kubelet is away
        if now != last:
            say({"event": "sample", **now})
            last = now
        time.sleep(every)


def checkpoint() -> list[dict[str, Any]]:
    """What the kubelet has written down of containers' devices, init containers among them."""
    try:
        entries = json.loads(CHECKPOINT.read_text())["Data"]["PodDeviceEntries"] or ()
    except FileNotFoundError:
        return []
    return [
        {
            "pod": each["PodUID"],
            "container": each["ContainerName"],
            "resource": each["ResourceName"],
            "ids": [one for ids in each["DeviceIDs"].values() for one in ids],
        }
        for each in entries
    ]


def records() -> list[dict[str, Any]]:
    """What the driver has written down of each claim."""
    found = []
    for file in RECORDS.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # released meanwhile
            said = json.loads(file.read_text())
            devices: dict[str, list[str]] = {}
            for each in said["prepared"]:
                unit = f"{each['unit']}." if each.get("unit") else ""
                shares = [f"{each['part_id']}::{unit}{number}" for number in each.get("shares", ())]
                devices.setdefault(each["result"]["device"], []).extend(shares or [each["part_id"]])
            found.append({"claim": said["name"], "uid": said["uid"], "devices": devices})
    return found


def cdi() -> list[str]:
    """Every device that a container runtime finds in the files for it."""
    found = []
    for file in CDI.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            said = json.loads(file.read_text())
            found += [f"{said['kind']}={each['name']}" for each in said["devices"]]
    return found


STARTING = "_LIBCONTAINER_"  # variables of `runc init`


def containers(prefixes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Every process of a pod on this node, with its variables that begin so and how much it has of everything."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            match = CGROUP.search((folder / "cgroup").read_text())
            if match is None:
                continue
            lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            words = (folder / "cmdline").read_text().split("\0")[:3]
            state = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            open_files = len(list((folder / "fd").iterdir()))
            nodes = [node.name for node in (folder / "root" / "dev").iterdir() if GPU_NODE.fullmatch(node.name)]
        except OSError:
            continue  # it ended meanwhile
        if not words or not words[0]:
            continue  # a zombie
        if any(line.startswith(STARTING) for line in lines):
            continue  # the runtime's, shortly before it becomes the container's
        found.append(
            {
                "pid": int(folder.name),
                "pod": match[1],
                "container": match[2],
                "words": words,
                "environment": dict(line.split("=", 1) for line in lines if "=" in line and line.startswith(prefixes)),
                "kib": int(state["VmRSS"].split()[0]) if "VmRSS" in state else 0,
                "threads": int(state["Threads"]),
                "files": open_files,
                "nodes": nodes,
            }
        )
    return found


def write(text: str) -> bool:
    """Replaces the file at once: a reader sees the old text or the new, never half of one."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    new = FILE.with_name(f".{FILE.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(FILE)
    return True


def processes(name: str) -> list[int]:
    """Processes of this node that run a program; `name` is a pattern for a whole word among their first three."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_text().split("\0")[:3]
            except OSError:
                continue  # it ended meanwhile
            if any(re.fullmatch(name, word.rsplit("/", 1)[-1]) for word in words):
                found.append(int(folder.name))
    return sorted(found)


def kill(name: str, number: int) -> list[int]:
    """Sends every process of that name a signal; one that has just ended needs none."""
    victims = processes(name)
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return victims


def fill(name: str) -> bool:
    """Fills the memory that the container of this process may have, until the kernel has killed the process.

    Another process does it, in the same control group (cgroup v1: that of memory, v2: the only one), by a file in
    memory, which counts for the group and makes no process large.
    """
    [victim] = processes(name)
    groups = Path(f"/proc/{victim}/cgroup").read_text().split()
    paths = {controller: path for _, controller, path in (line.split(":", 2) for line in groups)}
    root = Path("/sys/fs/cgroup")
    folder = root / "memory" / paths["memory"][1:] if "memory" in paths else root / paths[""][1:]
    Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    filler = os.fork()
    if filler == 0:
        try:
            (folder / "cgroup.procs").write_text("0")
            file = os.memfd_create("filler")
            while runs(victim):
                os.write(file, b"x" * 2**20)
            counts = folder / ("memory.oom_control" if "memory" in paths else "memory.events")
            os._exit(re.search(r"^oom_kill 0$", counts.read_text(), re.MULTILINE) is not None)
        finally:
            os._exit(1)
    _, status = os.waitpid(filler, 0)
    by_kernel = os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)  # the filler may be the next to be killed
    return by_kernel and not runs(victim)


def runs(pid: int) -> bool:
    """Whether the process has not ended; one that its parent has not waited for has no command line any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def answer(request: dict[str, Any]) -> object:
    match request["do"]:
        case "processes":
            return processes(request["name"])
        case "kill":
            return kill(request["name"], request["signal"])
        case "fill":
            return fill(request["name"])
        case "write":
            return write(request["text"])
        case "read":
            return FILE.read_text() if FILE.exists() else None
        case "remove":
            for file in (FILE, STATE):
                file.unlink(missing_ok=True)
            return True
        case "allocatable":
            return allocatable()
        case "holders":
            return holders()
        case "watch":
            threading.Thread(target=watch, daemon=True).start()
            return True
        case "sample":
            threading.Thread(target=sample, args=(request.get("every", WATCH_SECONDS),), daemon=True).start()
            return True
        case "checkpoint":
            return checkpoint()
        case "records":
            return records()
        case "cdi":
            return cdi()
        case "containers":
            return containers(tuple(request["prefixes"]))
        case "signal":
            os.kill(request["pid"], request["signal"])
            return True
        case other:
            raise ValueError(f"unknown request {other!r}")


say({"event": "ready"})
for line in sys.stdin:
    request = json.loads(line)
    try:
        said = {"answer": answer(request)}
    except (grpc.RpcError, OSError, ValueError, TimeoutError) as problem:
        said = {"error": f"{type(problem).__name__}: {problem}"[:500]}
    say({"number": request["number"], **said})
