"""gpu_config.json, by which nodes that are prepared Google's way say how their GPUs are shared and cut.

    {"GPUPartitionSize": "1g.5gb",
     "GPUSharingConfig": {"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": 4}}

Google's plugin goes on with whole GPUs where it cannot read the file; here a file that is wrong is refused with every
key that is, and what was in effect stays. MIG devices are made when the node is prepared (Google's partition_gpu
reads the same file), never by this agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from nodedevices_api.sections import MAX_REASONS
from pydantic import AfterValidator, Field, model_validator

from nodedevices_plugin.vendors.base import DeviceFile
from nodedevices_plugin.vendors.nvidia.cdi import DEFAULT_PREFIX
from nodedevices_plugin.vendors.nvidia.xids import MAX_XID
from nodedevices_plugin.vendors.plugin_files import Entries, PluginFile, ignored, matching, number, read, refuse

MAX_BYTES = 64 << 10
MAX_CLIENTS = 16_384  # replicas of a sharing resource
SIZE, DEPRECATED, SHARING, XIDS, DIVISOR = KEYS = (
    "GPUPartitionSize",
    "MaxTimeSharedClientsPerGPU",
    "GPUSharingConfig",
    "HealthCriticalXid",
    "GPUFractionDivisor",
)
STRATEGY, CLIENTS = "GPUSharingStrategy", "MaxSharedClientsPerGPU"
TIME_SHARING, MPS = "time-sharing", "mps"
STRATEGIES: Mapping[str, str] = {TIME_SHARING: "timeSlicing", MPS: "mps"}  # theirs -> sharing.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig:
    """The content of the file. `strategy` empty: GPUs are not shared; `partition_size` empty: they are whole."""

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
                "resources": [{"name": f"{DEFAULT_PREFIX}/gpu", "replicas": self.clients}],
            }
        if self.partition_size:
            found["partitions"] = {"strategy": "single"}
        if self.critical_xids:
            reasons = [f"Xid{number}" for number in self.critical_xids]
            found["health"] = {"rules": [{"reasons": reasons, "state": "Unhealthy"}]}
        return found


def _few(xids: tuple[int, ...]) -> tuple[int, ...]:
    found = tuple(sorted(set(xids)))
    if len(found) > MAX_REASONS:
        raise ValueError(f"{len(found)} XIDs; give a list of at most {MAX_REASONS} XIDs")
    return found


Clients = Annotated[int, number(0, MAX_CLIENTS)]
# Such as 1g.24gb+me.all and 1g.24gb-me.
Size = Annotated[
    str,
    matching(
        r"([1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z0-9.]{1,16})?)?",
        "it is not the size of a MIG device; give one such as 1g.10gb",
    ),
]


class _Shared(PluginFile):
    strategy: Annotated[str, matching(f"{TIME_SHARING}|{MPS}|", f"it is not known; give {TIME_SHARING} or {MPS}")] = (
        Field(default="", alias=STRATEGY)
    )
    clients: Clients = Field(default=0, alias=CLIENTS)


class _File(PluginFile):
    shared: _Shared = Field(default_factory=_Shared, alias=SHARING)
    before: Clients = Field(default=0, alias=DEPRECATED)
    size: Size = Field(default="", alias=SIZE)
    divisor: Annotated[Clients, ignored] = Field(default=0, alias=DIVISOR)  # decides nothing there, either
    xids: Annotated[tuple[Annotated[int, number(1, MAX_XID)], ...], Entries, AfterValidator(_few)] = Field(
        default=(), alias=XIDS
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        """Return the errors of values that do not go together."""
        strategy, clients, before = self.shared.strategy, self.shared.clients, self.before
        checks = (
            (
                strategy and not clients,
                (SHARING, CLIENTS),
                f"missing, with {STRATEGY} {strategy}; give 1 to {MAX_CLIENTS}",
            ),
            (
                clients and not strategy,
                (SHARING, STRATEGY),
                f"missing, with {CLIENTS} {clients}; give {TIME_SHARING} or {MPS}",
            ),
            (
                before and (strategy, clients) not in {("", 0), (TIME_SHARING, before)},
                (DEPRECATED,),
                f"{before}, and {SHARING} has {strategy or 'no strategy'}, {clients}; leave this deprecated key out",
            ),
            (
                strategy == MPS and clients > 1 and self.size,
                (SHARING, STRATEGY),
                (
                    f"{MPS}, with {SIZE} {self.size}: MPS cannot share MIG devices; give {TIME_SHARING}, or leave out "
                    f"{SIZE}"
                ),
            ),
        )
        refuse({at: text for wrong, at, text in checks if wrong})
        return self


def parse(raw: bytes) -> GpuConfig:
    """The file's content. Raises InputError with every key that is not right."""
    file = read(raw, _File, max_bytes=MAX_BYTES)
    deprecated = bool(file.before and not file.shared.strategy)
    return GpuConfig(
        strategy=TIME_SHARING if deprecated else file.shared.strategy,
        clients=file.before if deprecated else file.shared.clients,
        partition_size=file.size,
        critical_xids=file.xids,
    )


FILE = DeviceFile(name="gpu_config.json", type=GpuConfig, parse=parse, sections=GpuConfig.sections)
