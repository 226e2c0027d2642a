"""A vendor may bring flags, and devices with CDI names, by a file that is passed in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from nodedevices_plugin.granting.answers import edits, grant
from nodedevices_plugin.host.cdi_keeper import CdiKeeper
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings.effective import Effective, resolve, to_saved
from nodedevices_plugin.settings.file import ConfigError, parse as parse_file
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_probe.protocol import DeviceFact
from support.acme_cdi import FILE, KIND, AcmeByCdi, AcmeSettings
from support.facts import gpu, gpu_id, old
from support.local import at_once, restored
from support.stepped_node import Node

NODE = "--node-name=n1"
BY_CDI = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
NO_FOLDER = CdiEnvironment(unwritable="/var/run/cdi: Read-only file system")
WITH_ACME = Vendors((*VENDORS.every, AcmeByCdi()))


def fpga(index: int) -> DeviceFact:
    nodes = (f"/dev/acme{index}",)
    return DeviceFact(id=f"ACME-{index}", index=index, type="fpga", vendor="acme", device_nodes=nodes)


def effective(*arguments: str, file: bytes = b"", **environment: str) -> Effective:
    return resolve(parse([NODE, *arguments], environment, WITH_ACME), parse_file(file, WITH_ACME), None)


def acmes(of: Effective) -> object:
    return of.node.vendors["acme"]


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def node_with(*devices: DeviceFact, arguments: tuple[str, ...] = (), **variables: str) -> Node:
    return Node(*devices, local=at_once([NODE, *arguments], variables, WITH_ACME))


def by_cdi(node: Node, **found: CdiEnvironment) -> Node:
    node.given(cdi=found)
    return node.now(BY_CDI)


# --- flags ------------------------------------------------------------------------------------------------------------
def test_its_flags_variables_and_keys_come_back_to_it_and_a_policy_replaces_what_they_set() -> None:
    assert acmes(effective()) == AcmeSettings()
    assert acmes(effective("--acme-shells=a,b")) == AcmeSettings(shells=("a", "b"))
    assert acmes(effective(ACME_SHELLS="a", ACME_IMAGE="x")) == AcmeSettings(shells=("a",), image="x")
    assert acmes(effective(file=b"flags: {acmeShells: [c]}")) == AcmeSettings(shells=("c",))
    assert acmes(effective("--acme-shells=a", file=b"flags: {acmeShells: [c]}")) == AcmeSettings(shells=("a",))
    assert effective("--acme-regions").sections.partitions.strategy == "mixed"
    assert effective("--acme-regions", "--mig-strategy=single").sections.partitions.strategy == "single"
    own = parse([NODE, "--acme-regions"], {}, WITH_ACME)
    assert resolve(own, None, {"partitions": {"strategy": "none"}}).sections.partitions.strategy == "none"


def test_what_they_say_survives_the_state_file_and_a_flag_of_no_vendor_is_refused() -> None:
    now = effective("--acme-shells=a")
    saved = json.loads(json.dumps(to_saved(now)))
    assert restored(saved, vendors=WITH_ACME) == now
    del saved["node"]["vendors"]["acme"]
    assert acmes(restored(saved, vendors=WITH_ACME)) == AcmeSettings()
    with pytest.raises(ConfigError, match="--acme-shells: unknown flag"):
        parse([NODE, "--acme-shells=a"], {})


def test_help_shows_them_under_their_own_title(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {}, WITH_ACME)
    text = capsys.readouterr().out
    nvidias = text.index("with the same meaning as in NVIDIA's device plugin")
    assert nvidias < text.index("of Acme's FPGAs:") < text.index("--acme-shells")


def test_what_its_cdi_names_require_of_the_host_is_waited_for_and_no_libraries() -> None:
    node = node_with(fpga(0), gpu(0, readings=old()), arguments=("--acme-control-required",)).now({})
    assert node.offers == {}
    assert "/dev/acmectl is not on this node" in node.world.config.message
    node.given(existing=frozenset({"/dev/acmectl"}))
    assert node.now({}).offers["acme.com/fpga"] == ["ACME-0"]
    node = by_cdi(node_with(fpga(0), arguments=("--acme-shells=x",)), acme=CdiEnvironment())
    assert node.world.config.reason == "Applied"
    assert [each.kind for each in node.world.access.cdi["acme"].specs] == [KIND]
    got = edits(grant(node.plan.resources[0], ["ACME-0"]), node.world.access.containers)
    assert (got.cdi_devices, got.envs) == ((f"{KIND}=ACME-0",), {"ACME_SHELLS": "x"})


# --- CDI --------------------------------------------------------------------------------------------------------------


def test_cdi_names_wait_for_a_file_that_can_be_written_and_not_for_gpus_without_libraries() -> None:
    node = by_cdi(node_with(fpga(0)).now({}), acme=NO_FOLDER)
    assert "cannot write /var/run/cdi: Read-only file system" in node.world.config.message
    assert node.offers == {"acme.com/fpga": ["ACME-0"]}, "the way in effect goes on"
    node = node_with(gpu(0, readings=old()), fpga(0))
    by_cdi(node, nvidia=CdiEnvironment(made=frozenset({gpu_id(0)}), kept=True), acme=CdiEnvironment())
    assert node.offers == {"acme.com/fpga": ["ACME-0"], "nvidia.com/gpu": [gpu_id(0)]}
    by_cdi(node, nvidia=CdiEnvironment(), acme=CdiEnvironment())
    assert node.offers == {"acme.com/fpga": ["ACME-0"], "nvidia.com/gpu": []}


async def test_its_file_is_written_beside_nvidias_and_goes_when_nobody_holds_a_device(tmp_path: Path) -> None:
    files_worker, looks = Worker("files"), Worker("looks")
    keeper = CdiKeeper(tmp_path, [], files=files_worker, looks=looks, on_change=lambda: None, vendors=WITH_ACME)
    await keeper.first()
    node = node_with(gpu(0, readings=old()), fpga(0), NODEDEVICES_CDI_WITHOUT_LIBRARIES="true")
    found = keeper.environments
    by_cdi(node, nvidia=found["nvidia"], acme=found["acme"])
    await keeper.keep(node.world.access, free=lambda: False)
    assert files(tmp_path) == {FILE, "k8s.device-plugin.nvidia.com-gpu.json"}
    assert json.loads((tmp_path / FILE).read_text())["kind"] == KIND
    nothing = replace(node.world.access, cdi={})
    await keeper.keep(nothing, free=lambda: False)
    assert FILE in files(tmp_path), "a container that is restarted still has the name"
    await keeper.keep(nothing, free=lambda: True)
    assert files(tmp_path) == set()
