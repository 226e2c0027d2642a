"""gpu_config.json, by which nodes that are prepared Google's way say how their GPUs are shared and cut.

    {"GPUPartitionSize": "1g.5gb",
     "GPUSharingConfig": {"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": 4}}

Google's plugin goes on with whole GPUs where it cannot read the file; here a file that is wrong is refused with every
key that is, and what was in effect stays. MIG devices are made by whoever prepares the node (Google's partition_gpu
reads the same file), never by this agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodedevices_api.sections import MAX_REASONS
from nodedevices_common.errors import InputError, Problem
from nodedevices_common.options import Option
from nodedevices_common.text import nearest, show

from nodedevices_plugin.vendors.files import DeviceFile
from nodedevices_plugin.vendors.go_json import go_keys
from nodedevices_plugin.vendors.nvidia import names
from nodedevices_plugin.vendors.nvidia.xids import MAX_XID

MAX_BYTES = 64 << 10
MAX_CLIENTS = 16_384  # replicas of a sharing resource
SIZE, DEPRECATED, SHARING, XIDS, DIVISOR = (
    "GPUPartitionSize",
    "MaxTimeSharedClientsPerGPU",
    "GPUSharingConfig",
    "HealthCriticalXid",
    "GPUFractionDivisor",
)
KEYS = (SIZE, DEPRECATED, SHARING, XIDS, DIVISOR)
STRATEGY, CLIENTS = "GPUSharingStrategy", "MaxSharedClientsPerGPU"
TIME_SHARING, MPS = "time-sharing", "mps"
STRATEGIES: Mapping[str, str] = {TIME_SHARING: "timeSlicing", MPS: "mps"}  # theirs -> sharing.strategy
_SIZE = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z0-9.]{1,16})?")  # 1g.24gb+me.all, 1g.24gb-me


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig:
    """What the file says. `strategy` empty: GPUs are not shared; `partition_size` empty: they are whole."""

    strategy: str = ""
    clients: int = 0
    partition_size: str = ""
    critical_xids: tuple[int, ...] = ()

    def sections(self) -> Mapping[str, Any]:
        """The sections of the node's own configuration that this sets. One client for each GPU is no sharing."""
        found: dict[str, Any] = {}
        if self.strategy and self.clients > 1:
            found["sharing"] = {
                "strategy": STRATEGIES[self.strategy],
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": names.gpu(names.DEFAULT_PREFIX), "replicas": self.clients}],
            }
        if self.partition_size:
            found["partitions"] = {"strategy": "single"}
        if self.critical_xids:
            reasons = [f"Xid{number}" for number in self.critical_xids]
            found["health"] = {"rules": [{"reasons": reasons, "state": "Unhealthy"}]}
        return found


def parse(raw: bytes) -> GpuConfig:
    """The file's content. Raises InputError with every key that is not right."""
    if len(raw) > MAX_BYTES:
        raise InputError([f"{len(raw)} bytes; {MAX_BYTES} are the most"])
    try:
        document = json.loads(raw, object_pairs_hook=_once)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        text = str(error) if isinstance(error, json.JSONDecodeError) else "it is nested too deep, or not UTF-8 text"
        raise InputError([f"not JSON: {text}"]) from error
    problems: list[str] = []
    fields = _fields(document, "", KEYS, problems)
    shared = _fields(fields.get(SHARING, {}), SHARING, (STRATEGY, CLIENTS), problems)
    before = _clients(fields, DEPRECATED, DEPRECATED, problems)
    strategy = _strategy(shared, problems)
    clients = _clients(shared, CLIENTS, f"{SHARING}.{CLIENTS}", problems)
    size = _size(fields, problems)
    _clients(fields, DIVISOR, DIVISOR, problems)  # decides nothing: there, too, it comes from a file of its own
    xids = _xids(fields, problems)
    if not problems:
        problems += _together(strategy, clients, before, size)
    if problems:
        raise InputError(problems)
    if before and not strategy:
        strategy, clients = TIME_SHARING, before
    return GpuConfig(strategy=strategy, clients=clients, partition_size=size, critical_xids=xids)


FILE = DeviceFile(
    option=Option(
        name="gpu-config-file",
        variables=("NODEDEVICES_GPU_CONFIG_FILE",),
        aliases=("gpu-config",),
        group="files",
        metavar="FILE",
        help="[gpu_config.json](devices/google.md#gpu_configjson) of Google's device plugin: how GPUs are shared and "
        "cut; edits take effect at once",
    ),
    type=GpuConfig,
    parse=parse,
    sections=GpuConfig.sections,
)


def _together(strategy: str, clients: int, before: int, size: str) -> list[str]:
    """What does not go together."""
    place = f"{SHARING}.{CLIENTS}"
    problems: list[str] = []
    if strategy and not clients:
        problems.append(Problem.at(place, f"missing, with {STRATEGY} {strategy}; give 1 to {MAX_CLIENTS}"))
    if clients and not strategy:
        text = f"missing, with {CLIENTS} {clients}; give {TIME_SHARING} or {MPS}"
        problems.append(Problem.at(f"{SHARING}.{STRATEGY}", text))
    if before and (strategy, clients) not in {("", 0), (TIME_SHARING, before)}:
        text = f"{before}, and {SHARING} has {strategy or 'no strategy'}, {clients}; leave this deprecated key out"
        problems.append(Problem.at(DEPRECATED, text))
    if strategy == MPS and clients > 1 and size:
        text = f"{MPS}, with {SIZE} {size}: MPS cannot share MIG devices; give {TIME_SHARING}, or leave out {SIZE}"
        problems.append(Problem.at(f"{SHARING}.{STRATEGY}", text))
    return problems


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise InputError([Problem.at(show(key)[1:-1], "is there twice; give it once")])
        found[key] = value
    return found


def _fields(value: object, where: str, known: tuple[str, ...], problems: list[str]) -> Mapping[str, object]:
    """What is not null, by keys in any case, as for Go."""
    if not isinstance(value, dict):
        text = f"{show(value)} is not an object with {', '.join(known)}"
        problems.append(Problem.at(where, text) if where else text)
        return {}
    prefix = f"{where}." if where else ""
    keys = go_keys(value, known)
    problems += [
        Problem.at(f"{prefix}{show(key)[1:-1]}", f"unknown key{nearest(key[:64], known)}") for key in keys.unknown
    ]
    problems += [Problem.at(f"{prefix}{key}", "is there twice, written in two ways") for key in keys.repeated]
    return {key: item for key, item in keys.found.items() if item is not None}


def _clients(fields: Mapping[str, object], key: str, place: str, problems: list[str]) -> int:
    value = fields.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_CLIENTS:
        problems.append(Problem.at(place, f"{show(value)} is not a number from 0 to {MAX_CLIENTS}"))
        return 0
    return value


def _strategy(fields: Mapping[str, object], problems: list[str]) -> str:
    value = fields.get(STRATEGY, "")
    if value == "" or (isinstance(value, str) and value in STRATEGIES):
        return str(value)
    problems.append(Problem.at(f"{SHARING}.{STRATEGY}", f"{show(value)} is not known; give {TIME_SHARING} or {MPS}"))
    return ""


def _size(fields: Mapping[str, object], problems: list[str]) -> str:
    value = fields.get(SIZE, "")
    if value == "" or (isinstance(value, str) and _SIZE.fullmatch(value)):
        return str(value)
    problems.append(Problem.at(SIZE, f"{show(value)} is not the size of a MIG device; give one such as 1g.10gb"))
    return ""


def _xids(fields: Mapping[str, object], problems: list[str]) -> tuple[int, ...]:
    value = fields.get(XIDS, [])
    numbers = value if isinstance(value, list) else [value]
    wrong = [
        each for each in numbers if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each <= MAX_XID
    ]
    if wrong or not isinstance(value, list) or len(set(numbers)) > MAX_REASONS:
        text = f"{show(wrong[0] if wrong else value)}: give a list of at most {MAX_REASONS} XIDs, 1 to {MAX_XID}"
        problems.append(Problem.at(XIDS, text))
        return ()
    return tuple(sorted(set(numbers)))
