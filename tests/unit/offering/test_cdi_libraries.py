"""Where the driver's libraries in our CDI specification come from, from literals."""

from __future__ import annotations

from typing import Any

from nodedevices_plugin.vendors import cdi_schema
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiSpec, choose, completed, merged, missing, stale, whole
from nodedevices_plugin.vendors.nvidia.cdi import GPU_KIND, LIBRARIES
from support.cases import cases

LIBRARY = {"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro"]}
HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "update-ldcache"],
}
VOID = "NVIDIA_VISIBLE_DEVICES=void"
CAPS = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")


def device(name: str, *nodes: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": each} for each in nodes], **more}}


def document(*devices: dict[str, Any], kind: str = GPU_KIND, **common: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": list(devices), "containerEdits": {"env": [VOID], **common}}


OURS = document(device("GPU-a", "/dev/nvidia0"), device("GPU-b", "/dev/nvidia1"))
SPEC = CdiSpec(kind=GPU_KIND, file_name="k8s.device-plugin.nvidia.com-gpu.json", document=OURS, libraries=LIBRARIES)
CHANNEL = CdiSpec(kind="k8s.device-plugin.nvidia.com/imex-channel", file_name="imex-channel.json", document={})
TOOLKIT = document(
    device("0", "/dev/nvidia0", "/dev/dri/card0"),
    device("all", "/dev/nvidia0", "/dev/nvidia1"),
    kind="nvidia.com/gpu",
    mounts=[LIBRARY],
    hooks=[HOOK],
    deviceNodes=[{"path": "/dev/nvidiactl"}],
)


def paths(spec: CdiSpec, name: str) -> list[str]:
    found = next(each for each in spec.document["devices"] if each["name"] == name)
    return [each["path"] for each in found["containerEdits"]["deviceNodes"]]


@cases(
    ("edits", "is_whole"),
    ({}, False),
    ({"mounts": [LIBRARY]}, True),
    ({"hooks": [HOOK]}, True),
    ({"env": ["A=b"]}, False),
)
def test_whole_is_what_brings_more_than_device_nodes(edits: dict[str, Any], is_whole: bool) -> None:
    assert whole(document(device("GPU-a", "/dev/nvidia0"), **edits)) is is_whole
    assert whole(document(device("GPU-a", "/dev/nvidia0", **edits))) is is_whole


def test_our_devices_get_what_the_toolkits_specification_gives_to_the_same_device_and_no_part_of_it() -> None:
    made = completed(SPEC, TOOLKIT)
    assert made.document["kind"] == GPU_KIND
    assert paths(made, "GPU-a") == ["/dev/nvidia0", "/dev/dri/card0"]
    assert paths(made, "GPU-b") == ["/dev/nvidia1"], "an entry for all of them is no device"
    common = made.document["containerEdits"]
    assert (common["mounts"], common["hooks"], common["env"]) == ([LIBRARY], [HOOK], [VOID])
    assert cdi_schema.problems(made.document) == ()
    made = completed(SPEC, document(device("0:0", *CAPS), mounts=[LIBRARY]))
    assert paths(made, "GPU-a") == ["/dev/nvidia0"]


def test_a_good_specification_keeps_its_names_and_a_whole_one_of_ours_takes_its_place() -> None:
    theirs = document(device("GPU-a", "/dev/nvidia0", hooks=[HOOK]), device("MIG-x", *CAPS), mounts=[LIBRARY])
    both = merged(SPEC, theirs).document
    assert [each["name"] for each in both["devices"]] == ["GPU-a", "GPU-b", "MIG-x"]
    assert both["containerEdits"]["mounts"] == [LIBRARY]
    assert both["devices"][0]["containerEdits"]["hooks"] == [HOOK]
    assert cdi_schema.problems(both) == ()
    theirs = document(device("GPU-a", "/dev/nvidia0"), device("MIG-x", *CAPS), mounts=[{**LIBRARY, "hostPath": "/old"}])
    both = merged(completed(SPEC, TOOLKIT), theirs).document
    assert [each["name"] for each in both["devices"]] == ["GPU-a", "GPU-b", "MIG-x"]
    assert both["containerEdits"]["mounts"] == [LIBRARY]


def test_the_best_is_chosen_and_without_libraries_it_says_what_was_searched_for() -> None:
    made = document(device("GPU-a", "/dev/nvidia0"), device("GPU-b", "/dev/nvidia1"), mounts=[LIBRARY])
    bare = document(device("0", "/dev/nvidia0"))
    both = (SPEC, CHANNEL)
    assert choose(both, made, [TOOLKIT], nodes_will_do=False)[0].document == made
    assert choose(both, None, [bare, TOOLKIT], nodes_will_do=True)[0] == completed(SPEC, TOOLKIT)
    assert choose(both, None, [None, bare], nodes_will_do=True) == both
    assert choose(both, None, [None, bare], nodes_will_do=False) == (CHANNEL,)
    here = CdiEnvironment(
        toolkit_problem="/etc/cdi/nvidia.yaml: not YAML", made_problem="nvidia-ctk is not in the agent's image"
    )
    said = missing((SPEC,), here, active=False)
    assert "(/etc/cdi/nvidia.yaml: not YAML; nvidia-ctk is not in the agent's image)" in said
    for way in ("nvidia-ctk cdi generate", "component driver-root", "NODEDEVICES_CDI_WITHOUT_LIBRARIES=true"):
        assert way in said


@cases(
    ("here", "active", "is_missing"),
    (CdiEnvironment(), False, True),
    (CdiEnvironment(), True, True),
    (CdiEnvironment(made=frozenset({"GPU-a"})), False, True),
    (CdiEnvironment(made=frozenset({"GPU-a", "GPU-b"})), False, False),
    (CdiEnvironment(toolkit_libraries=True), False, False),
    (CdiEnvironment(kept=True), False, True),
    (CdiEnvironment(kept=True), True, False),
)
def test_the_last_good_one_counts_for_what_is_in_effect(here: CdiEnvironment, active: bool, is_missing: bool) -> None:
    assert bool(missing((SPEC,), here, active=active)) is is_missing
    assert missing((CHANNEL,), here, active=active) == ""


def test_what_broke_is_named_while_the_last_good_one_is_used() -> None:
    broken = CdiEnvironment(kept=True, toolkit_problem="/etc/cdi/nvidia.yaml: not YAML")
    assert stale((SPEC,), broken) == "CDI: /etc/cdi/nvidia.yaml: not YAML; the last good one is used"
    assert stale((CHANNEL,), broken) == "", "the toolkit's own has all devices again"
    assert stale((SPEC,), CdiEnvironment(made=frozenset({"GPU-a", "GPU-b"}))) == ""
    lacking = CdiEnvironment(toolkit_libraries=True, kept=True, made_problem="nvidia-ctk is not in the agent's image")
    assert "lacks some of these devices" in stale((SPEC,), lacking)
