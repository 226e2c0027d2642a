"""What a check reads beside probes' lines: the hardware, the agent's files, a policy, the agent's state file.

Files are read as the agent reads them, on a worker's thread: one that hangs is a problem like any other. The state file
is read alone: what cannot be used of it is said, and it stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from nodedevices_api.base import to_dict
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.sections import Sections
from nodedevices_common import safe_yaml
from nodedevices_common.errors import InputError
from nodedevices_common.text import show

from nodedevices_plugin.host.machine import FoundHardware, LocalMachine, Machine, ServedMachine
from nodedevices_plugin.inputs.config_file import ConfigFile, DeviceFolder
from nodedevices_plugin.pipeline.state import MAX_BYTES, State, StateError, from_bytes
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings import file as config_file
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.settings import DeviceFiles

_OF_OBJECT = ("apiVersion", "kind", "metadata", "spec")


class Sources(Struct, kw_only=True):
    """`hardware`: as pipeline.world.Inputs has it. `state_problem`: what of the state file could not be used."""

    file: FileOutcome = field(default_factory=FileOutcome)
    device_files: DeviceFiles = field(default_factory=dict)
    hardware: frozenset[str] | None = None
    hardware_problem: str = ""
    policy: Mapping[str, Any] | None = None  # its sections
    policy_problem: str = ""
    state: State = field(default_factory=State)
    state_problem: str = ""


async def read(local: Local, *, policy: str, state_file: str) -> Sources:
    """`policy`, `state_file`: paths; empty: none."""
    found = Sources()

    def on_file(outcome: FileOutcome) -> None:
        found.file = outcome

    def on_device_files(files: DeviceFiles) -> None:
        found.device_files = files

    machine: Machine = ServedMachine(local.probe_server) if local.probe_server else LocalMachine()
    hardware = FoundHardware(worker=Worker("hardware"), on_change=lambda: None, check=machine.hardware)
    hardware.want(wanted=True)  # or it does not say what its problem is
    worker = Worker("files")
    firsts = [hardware.first()]
    if local.config_file is not None:
        file = ConfigFile(Path(local.config_file), worker=worker, on_change=on_file, vendors=local.vendors)
        firsts.append(file.first())
    if local.devices_dir is not None:
        folder = Path(local.devices_dir)
        files = DeviceFolder(
            folder, node=local.node_name, worker=worker, on_change=on_device_files, vendors=local.vendors
        )
        firsts.append(files.first())
    await asyncio.gather(*firsts)
    found.hardware, found.hardware_problem = hardware.found, hardware.problem
    if hardware.found is None and not hardware.problem:
        found.hardware_problem = "/sys, /proc or /dev does not answer"
    if policy:
        try:
            raw = await worker.run(lambda: _bytes(Path(policy), config_file.MAX_BYTES))
            found.policy = sections(raw)
        except OSError as error:
            found.policy_problem = f"--policy {policy}: {error.strerror or error}"
        except InputError as error:
            found.policy_problem = f"--policy {policy}: {error}"
    if state_file:
        try:
            found.state, unread = from_bytes(await worker.run(lambda: _bytes(Path(state_file), MAX_BYTES)))
            found.state_problem = f"--state-file {state_file}: not used: {unread}" if unread else ""
        except OSError as error:
            found.state_problem = f"--state-file {state_file}: {error.strerror or error}"
        except (InputError, StateError) as error:
            found.state_problem = f"--state-file {state_file}: not a state file ({error})"
    return found


def sections(raw: bytes) -> dict[str, Any]:
    """Return the sections of a policy, or of a file with sections alone. InputError names what is wrong."""
    documents = [
        document for document in safe_yaml.load_all(raw, max_values=config_file.MAX_VALUES) if document is not None
    ]
    if len(documents) != 1:
        raise InputError(f"{len(documents)} documents; give one policy")
    [document] = documents
    if not isinstance(document, dict):
        raise InputError(f"{show(document)} is not a policy; give a DevicePolicy, or only its sections")
    if "kind" not in document:
        return to_dict(parse(Sections, document))
    if document["kind"] != "DevicePolicy":
        raise InputError(
            f"kind: {show(document['kind'])} is not supported here; give a DevicePolicy, or only its sections"
        )
    return to_dict(parse(DevicePolicy, {key: document[key] for key in _OF_OBJECT if key in document}).spec.sections())


def _bytes(path: Path, most: int) -> bytes:
    with path.open("rb") as opened:
        raw = opened.read(most + 1)
    if len(raw) > most:
        raise InputError(f"larger than {most} bytes")
    return raw
