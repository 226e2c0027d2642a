"""`kubectl nodedevices` in this process, with streams and a clock of the test's; and objects for it to show."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from nodedevices_kubectl.main import run
from nodedevices_kubectl.session import Machine

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
JsonObject = dict[str, Any]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class CommandLine:
    """Runs commands, and keeps what the last one wrote. `meanwhile`: called where a command waits."""

    environment: dict[str, str]
    code: int = 0
    out: str = ""
    err: str = ""
    terminal: bool = False
    more: Mapping[str, str] = field(default_factory=dict)
    meanwhile: Callable[[float], None] = lambda _: None

    def __call__(self, *args: str) -> int:
        stdout, stderr = (Terminal() if self.terminal else io.StringIO()), io.StringIO()
        machine = Machine({**self.environment, **self.more}, stdout, stderr, lambda: NOW, self.meanwhile)
        self.code = run(args, machine)
        self.out, self.err = stdout.getvalue(), stderr.getvalue()
        return self.code


def condition(
    kind: str, status: str, reason: str, message: str = "", since: str = "2026-11-20T12:00:00Z"
) -> JsonObject:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def action(name: str, reason: str, message: str = "") -> JsonObject:
    return {"name": name, "reason": reason, "message": message}


def gpu(index: int, *pods: str, **more: Any) -> JsonObject:
    """`pods`: namespace/name, each holding the whole device."""
    holders = [
        {
            "namespace": pod.partition("/")[0],
            "pod": pod.partition("/")[2],
            "container": "main",
            "resource": "nvidia.com/gpu",
            "since": "2026-11-23T09:00:00.000000Z",
        }
        for pod in pods
    ]
    return {
        "id": f"GPU-{index:08d}-0000-4000-8000-000000000000",
        "name": f"gpu-{index}",
        "type": "gpu",
        "index": index,
        "attributes": {
            "vendor": "nvidia",
            "productName": "NVIDIA H100 80GB HBM3",
            "pciBusID": f"0000:{index + 16:02x}:00.0",
            "numaNode": index // 4,
        },
        "capacity": {"memory": "80Gi"},
        "health": {"state": "Healthy", "since": "2026-11-18T09:00:00Z"},
        **({"holders": holders} if holders else {}),
        **more,
    }


def failed(reason: str = "Xid79", state: str = "Unhealthy", action: str = "ResetBus") -> JsonObject:
    return {
        "health": {
            "state": state,
            "reason": reason,
            "message": "GPU has fallen off the bus (XID 79); reset its bus",
            "since": "2026-11-23T11:55:30Z",
            "recoveryAction": action,
            "xids": [79],
        }
    }


def node(name: str, *devices: JsonObject, **status: Any) -> JsonObject:
    """A NodeDevices as an agent and the operator write it; `conditions` in `status` replace those of the same type."""
    parts = [device for device in devices if "parent" not in device]
    states = [device["health"]["state"] for device in parts]
    worst: JsonObject = next((device["health"] for device in parts if device["health"]["state"] == "Unhealthy"), {})
    worst = worst or next((device["health"] for device in parts if device["health"]["state"] == "Degraded"), {})
    held = len({device.get("parent", device["name"]) for device in devices if device.get("holders")})
    given = {each["type"]: each for each in status.pop("conditions", ())}
    well = {
        each["type"]: each
        for each in (
            condition("Ready", "True", "AgentRunning"),
            condition("DevicesHealthy", "True" if not worst else "False", "AllHealthy" if not worst else "DeviceFault"),
            condition("ConfigApplied", "True", "Applied"),
            condition("HoldersKnown", "True", "Synced"),
            condition("AllocatedOnce", "True", "NoDoubleAllocation"),
            condition("Stale", "False", "Fresh"),
        )
    }
    healthy = sum(state in {"Healthy", "Degraded"} for state in states)
    summary = {
        "devices": len(parts),
        "healthy": healthy,
        "degraded": states.count("Degraded"),
        "unhealthy": states.count("Unhealthy"),
        "unknown": states.count("Unknown"),
        "held": held,
        "unschedulable": sum(bool(device.get("unschedulable")) for device in parts),
        "model": "NVIDIA-H100-80GB-HBM3" if parts else "",
        "reason": worst.get("reason", ""),
        "recoveryAction": worst.get("recoveryAction", "None"),
        "withheld": f"Unhealthy={states.count('Unhealthy')}" if "Unhealthy" in states else "",
    }
    resource = {
        "name": "nvidia.com/gpu",
        "capacity": len(parts),
        "healthy": healthy,
        "allocated": held,
        "free": max(0, healthy - held),
        "sharing": "none",
        "managedBy": "plugin",
    }
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": name, "creationTimestamp": "2026-11-18T09:00:00Z", "resourceVersion": "7"},
        "spec": {},
        "status": {
            "summary": summary,
            "drivers": [{"name": "nvidia", "version": "570.148.08"}],
            "probes": [{"name": "nvml", "state": "Ready", "since": "2026-11-18T09:00:00Z", "devices": len(parts)}],
            "agent": {
                "version": "0.1.0",
                "bootID": "b",
                "startTime": "2026-11-18T09:00:00Z",
                "heartbeatTime": "2026-11-23T11:57:00Z",
            },
            "devices": list(devices),
            "resources": [resource] if parts else [],
            "conditions": list({**well, **given}.values()),
            **status,
        },
    }
