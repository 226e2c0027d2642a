"""The machine that a vector describes, made for the agent: a file for the simulated probe, folders in the place of the
host's, and the environment. Everything lies in one folder of the test's own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml
from conformance.nvidia_device_plugin.vectors import Vector
from support.mps import MpsRunner, with_path

CONFIG_PATH = "/config/config.yaml"  # where the recorded plugin found its file
MIB = 1 << 20


def devices_file(vector: Vector, *, struck: bool) -> str:
    """For the simulated probe. `struck`: with the faults of the inventory, whose XIDs happen when they first appear."""
    inventory = vector.inventory
    if inventory.get("nvml_library") == "absent":
        return yaml.safe_dump({"driver": {"state": "NotLoaded"}, "devices": []})
    devices, events = [], []
    for each in inventory["devices"]:
        fault = each.get("fault", {})
        lost = "lost_after_ms" in fault and (struck or fault["lost_after_ms"] == 0)
        devices.append(_device(each) | ({"lost": True} if lost else {}))
        if struck and "xid" in fault:
            instance = {
                short: fault[key]
                for short, key in (("gi", "xid_gpu_instance_id"), ("ci", "xid_compute_instance_id"))
                if key in fault
            }
            events.append({"id": f"fault-{each['index']}", "device": each["index"], "xid": fault["xid"], **instance})
    known = {each["index"] for each in inventory["devices"] if "DGX Display" not in each["name"]}
    links = [
        {"a": each["a"], "b": each["b"], "pcie": each["pcie"], "nvlinks": each["nvlinks"]}
        for each in inventory["links"]
        if {each["a"], each["b"]} <= known
    ]
    return yaml.safe_dump(
        {
            "driver": {"version": inventory["driver_version"]},
            "devices": devices,
            "links": links,
            "migMinors": inventory.get("mig_minors", []),
            "events": events,
        },
        sort_keys=False,
    )


def _device(each: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": each["index"],
        "id": each["uuid"],
        "minor": each["minor"],
        "productName": each["name"],
        "pciBusId": each["pci_bus_id"],
        "numaNode": each["numa_node"],
        "memoryBytes": each["memory_bytes"],
        "computeCapability": each["compute_capability"],
        "migEnabled": each["mig_enabled"],
        "mig": [
            {
                "profile": mig["profile"],
                "id": mig["uuid"],
                "index": mig["index"],
                "gi": mig["gpu_instance_id"],
                "ci": mig["compute_instance_id"],
                "giSlices": mig["gpu_slices"],
                "ciSlices": mig["compute_slices"],
                "memoryBytes": mig["memory_mib"] * MIB,
            }
            for mig in each.get("mig_devices", ())
        ],
    }


class Host:
    """The folders, the configuration file and the command line of one vector."""

    def __init__(self, vector: Vector, folder: Path) -> None:
        self.vector = vector
        self.config_file = folder / "config.yaml"
        self._cdi = folder / "cdi"
        # The agent looks at the device nodes of the driver's root where that is mounted, so they can be any files.
        root = folder / "driver-root"
        for node in vector.input["node"]["device_nodes"]:
            path = root / node.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        given = dict(vector.input.get("env", {}))
        self.arguments = [
            f"--driver-root-ctr-path={root}",
            f"--cdi-spec-dirs={self._cdi}",
            *vector.input.get("args", ()),
        ]
        if "config_file" in vector.input:
            self.configure(vector.input["config_file"])
            if given.get("CONFIG_FILE") == CONFIG_PATH:
                given["CONFIG_FILE"] = str(self.config_file)
            else:
                self.arguments.append(f"--config-file={self.config_file}")
        self.environment = os.environ | given
        self.mps = MpsRunner(folder) if vector.input["node"].get("mps_control_answers") else None
        if self.mps is not None:  # without it nothing of NVIDIA's MPS is on this machine
            self.environment = with_path(self.mps.programs, self.environment)

    def configure(self, text: str) -> None:
        """The configuration file from now on, replaced at once."""
        new = self.config_file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config_file)

    def cdi_specs(self) -> dict[str, dict[str, list[list[str]]]]:
        """Kind -> device -> its nodes as (path in the container, path on the host), of the CDI files written."""
        found = {}
        for path in sorted(self._cdi.glob("*.json")):
            spec = json.loads(path.read_text())
            found[spec["kind"]] = {each["name"]: _nodes(each["containerEdits"]) for each in spec["devices"]}
        return found


def _nodes(edits: dict[str, Any]) -> list[list[str]]:
    return sorted([each["path"], each.get("hostPath", each["path"])] for each in edits.get("deviceNodes", ()))
