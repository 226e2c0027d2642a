"""The CDI specs that we write, and the check that no runtime refuses them."""

from __future__ import annotations

import copy
from typing import Any

from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.vendors import cdi_schema
from nodedevices_plugin.vendors.cdi import devices_of
from nodedevices_plugin.vendors.nvidia import cdi
from nodedevices_plugin.vendors.nvidia.cdi import Host
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import START, gpu, gpu_id, inventory_of, mig_id, partition, snapshot

VENDOR = "k8s.device-plugin.nvidia.com"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


def written(*gpus: DeviceFact, id_strategy: str = "uuid", **host: Any) -> dict[str, Any]:
    """Kind -> document, each valid and in the file that NVIDIA's plugin gives it."""
    found = cdi.specs(inventory_of(*gpus), Host(**host), id_strategy=id_strategy)
    for spec in found:
        assert cdi_schema.problems(spec.document) == ()
        assert spec.file_name == spec.kind.replace("/", "-") + ".json"
    return {spec.kind: spec.document for spec in found}


def nodes(document: Any) -> dict[str, list[tuple[str, str]]]:
    return {
        device["name"]: [(node["path"], node["hostPath"]) for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }


def test_the_whole_document_of_one_gpu() -> None:
    assert written(gpu(0), existing=frozenset(CONTROL)) == {
        f"{VENDOR}/gpu": {
            "cdiVersion": "0.5.0",
            "kind": f"{VENDOR}/gpu",
            "devices": [
                {
                    "name": gpu_id(0),
                    "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0"}]},
                }
            ],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": path, "hostPath": path} for path in CONTROL],
            },
        }
    }


def test_mig_devices_have_three_nodes_and_their_gpu_has_no_entry() -> None:
    caps = ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0, device_nodes=caps),))
    found = nodes(written(cut, gpu(1))[f"{VENDOR}/gpu"])
    assert found == {
        mig_id(0, 0): [(path, path) for path in ("/dev/nvidia0", *caps)],
        gpu_id(1): [("/dev/nvidia1", "/dev/nvidia1")],
    }
    assert list(nodes(written(cut, gpu(1), id_strategy="index")[f"{VENDOR}/gpu"])) == ["0:0", "1"]


def test_host_paths_follow_the_roots_and_gds_takes_its_files_along() -> None:
    driver = written(gpu(0, minor=4), driver_root="/run/nvidia/driver")
    assert nodes(driver[f"{VENDOR}/gpu"]) == {gpu_id(0): [("/dev/nvidia4", "/run/nvidia/driver/dev/nvidia4")]}
    dev = written(gpu(0), driver_root="/run/nvidia/driver", dev_root="/host")
    assert nodes(dev[f"{VENDOR}/gpu"]) == {gpu_id(0): [("/dev/nvidia0", "/host/dev/nvidia0")]}
    existing = frozenset({"/dev/nvidia-fs0", "/etc/cufile.json", "/run/udev"})
    found = written(gpu(0), features=("gds",), existing=existing, driver_root="/run/nvidia/driver", dev_root="/")
    (device,) = found[f"{VENDOR}/gds"]["devices"]
    assert [(each["hostPath"], each["containerPath"]) for each in device["containerEdits"]["mounts"]] == [
        ("/run/nvidia/driver/etc/cufile.json", "/etc/cufile.json"),
        ("/run/nvidia/driver/run/udev", "/run/udev"),
    ]


def test_classes_have_a_spec_where_they_are_switched_on_and_have_nodes() -> None:
    existing = frozenset(
        {"/dev/gdrdrv", "/dev/nvidia-fs1", "/dev/nvidia-fs0", "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}
    )
    found = written(gpu(0), features=("gdrcopy", "gds", "mofed"), existing=existing, imex_channels=(0,))
    assert {kind.partition("/")[2]: nodes(document) for kind, document in found.items()} == {
        "gdrcopy": {"all": [("/dev/gdrdrv", "/dev/gdrdrv")]},
        "gds": {"all": [("/dev/nvidia-fs0", "/dev/nvidia-fs0"), ("/dev/nvidia-fs1", "/dev/nvidia-fs1")]},
        "gpu": {gpu_id(0): [("/dev/nvidia0", "/dev/nvidia0")]},
        "imex-channel": {"0": [(CHANNEL, CHANNEL)]},
        "mofed": {
            "all": [
                ("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm"),
                ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
            ]
        },
    }
    assert list(written(gpu(0), features=("gdrcopy",))) == [f"{VENDOR}/gpu"]
    assert list(written(gpu(0), existing=existing)) == [f"{VENDOR}/gpu"]


def test_a_device_that_left_or_a_mig_device_without_all_nodes_has_no_entry() -> None:
    display = gpu(2, product_name="NVIDIA DGX Display")
    gone = stage.update(inventory_of(gpu(0), gpu(1), display), snapshot(gpu(0), display), now=START, monotonic=1)
    (spec,) = cdi.specs(gone, Host())
    assert list(nodes(spec.document)) == [gpu_id(0)]
    assert cdi.specs(inventory_of(), Host()) == ()
    caps = ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0, device_nodes=caps),))
    for paths, expected in ((["/dev/nvidia0", *caps], {mig_id(0, 0): "0:0"}), (["/dev/nvidia0"], {})):
        assert cdi.toolkit_names(inventory_of(cut), devices_of(toolkit(("0:0", paths)), "nvidia.com/gpu")) == expected


# --- the container toolkit's spec -------------------------------------------------------------------------------------
def toolkit(*devices: tuple[str, list[str]], kind: str = "nvidia.com/gpu") -> dict[str, Any]:
    """As `nvidia-ctk cdi generate` has it, without what does not matter here."""
    entries = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}} for name, paths in devices
    ]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": entries}


def test_a_device_of_the_toolkits_spec_is_known_by_its_id_or_an_index_that_is_still_its() -> None:
    both = toolkit(("0", ["/dev/nvidia0"]), (gpu_id(0), ["/dev/nvidia0"]), ("1", ["/dev/nvidia1"]), ("all", []))
    found = cdi.toolkit_names(inventory_of(gpu(0), gpu(1), gpu(2)), devices_of(both, "nvidia.com/gpu"))
    assert found == {gpu_id(0): gpu_id(0), gpu_id(1): "1"}
    old = devices_of(toolkit(("0", ["/dev/nvidia0"]), ("1", ["/dev/nvidia1"])), "nvidia.com/gpu")
    moved = inventory_of(gpu(0, minor=1), gpu(1, minor=0))
    assert cdi.toolkit_names(moved, old) == {}


def test_odd_device_nodes_of_the_toolkits_spec_leave_the_others() -> None:
    odd = toolkit(("0", ["/dev/nvidia0"]))
    odd["devices"][0]["containerEdits"]["deviceNodes"] += ["/dev/nvidia1", {"hostPath": "/dev/nvidia2"}, None]
    [device] = devices_of(odd, "nvidia.com/gpu")
    assert device.nodes == {"/dev/nvidia0"}


@cases("document", None, [], {}, {"kind": "nvidia.com/gpu"}, toolkit(("0", []), kind="other.com/gpu"), "nvidia.com/gpu")
def test_what_is_not_the_toolkits_has_no_devices(document: object) -> None:
    assert devices_of(document, "nvidia.com/gpu") == ()


def test_where_the_toolkits_spec_has_every_gpu_ours_has_none_and_else_all() -> None:
    inventory = inventory_of(gpu(0), gpu(1))
    assert cdi.specs(inventory, Host(), elsewhere={gpu_id(0), gpu_id(1)}) == ()
    (spec,) = cdi.specs(inventory, Host(), elsewhere={gpu_id(0)})
    assert list(nodes(spec.document)) == [gpu_id(0), gpu_id(1)]


def test_what_was_made_of_a_mounted_driver_root_gets_the_hosts_paths() -> None:
    made = {
        "cdiVersion": "0.3.0",
        "kind": f"{VENDOR}/gpu",
        "devices": [
            {
                "name": "a",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "hostPath": "/driver-root/dev/nvidia0"},
                        {"path": "/dev/dri/card0"},
                    ]
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [
                {"hostPath": "/driver-root/usr/lib64/libcuda.so.1", "containerPath": "/usr/lib64/libcuda.so.1"},
                {"hostPath": "/driver-rooted/file", "containerPath": "/file"},
            ],
        },
    }
    moved = cdi.rerooted(made, Host(driver_root="/run/nvidia/driver", dev_root="/host"), mounted="/driver-root/")
    assert cdi_schema.problems(moved) == ()
    (device,) = moved["devices"]
    assert [each["hostPath"] for each in device["containerEdits"]["deviceNodes"]] == [
        "/host/dev/nvidia0",
        "/host/dev/dri/card0",
    ]
    assert [each["hostPath"] for each in moved["containerEdits"]["mounts"]] == [
        "/run/nvidia/driver/usr/lib64/libcuda.so.1",
        "/driver-rooted/file",
    ]
    assert moved["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


# --- the check --------------------------------------------------------------------------------------------------------
GOOD: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "vendor.com/gpu",
    "annotations": {"whose": "ours"},
    "devices": [
        {
            "name": "0:1",
            "containerEdits": {
                "env": ["A=b", "EMPTY="],
                "deviceNodes": [
                    {"path": "/dev/a", "hostPath": "/host/dev/a", "type": "c", "major": 195, "permissions": "rw"}
                ],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"], "type": "none"}],
                "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk"]}],
            },
        }
    ],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """GOOD with some values replaced (None: removed), by dotted path."""
    document = copy.deepcopy(GOOD)
    for path, value in change.items():
        *way, last = path.split(".")
        place: Any = document
        for step in way:
            place = place[int(step) if step.isdecimal() else step]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return document


@cases(
    ("change", "problem"),
    ({"cdiVersion": None}, "cdiVersion: missing"),
    ({"cdiVersion": "2.0.0"}, 'cdiVersion: "2.0.0" is not allowed'),
    ({"cdiVersion": "0.5.0"}, "cdiVersion: 0.5.0 is too old for annotations; 0.6.0 is needed"),
    (
        {"cdiVersion": "0.5.0", "annotations": None, "kind": "vendor.com/g.pu"},
        "0.5.0 is too old for a dot in the kind's name; 0.6.0 is needed",
    ),
    ({"cdiVersion": "0.4.0", "annotations": None}, "0.4.0 is too old for hostPath; 0.5.0 is needed"),
    ({"containerEdits.additionalGids": [44]}, "0.6.0 is too old for additionalGids; 0.7.0 is needed"),
    ({"kind": "gpu"}, 'kind: "gpu" is not allowed'),
    ({"kind": "vendor.com/"}, 'kind: "vendor.com/" is not allowed'),
    ({"devices": []}, "devices: none; a spec has one at least"),
    ({"devices.0.name": "a/b"}, 'devices[0].name: "a/b" is not allowed'),
    ({"devices.0.name": "-a"}, 'devices[0].name: "-a" is not allowed'),
    ({"devices.0.containerEdits": {}}, "devices[0].containerEdits: empty"),
    ({"devices": [*GOOD["devices"], *GOOD["devices"]]}, "devices: 0:1 is listed twice"),
    ({"devices.0.containerEdits.deviceNodes.0.path": "dev/a"}, 'deviceNodes[0].path: "dev/a" is not allowed'),
    ({"devices.0.containerEdits.deviceNodes.0.permissions": "x"}, 'deviceNodes[0].permissions: "x" is not allowed'),
    ({"devices.0.containerEdits.deviceNodes.0.containerPath": "/a"}, "containerPath: unknown key"),
    ({"devices.0.containerEdits.env": ["A"]}, 'env[0]: "A" is not allowed'),
    ({"devices.0.containerEdits.hooks.0.hookName": "later"}, 'hookName: "later" is not allowed'),
    ({"extra": 1}, "extra: unknown key"),
)
def test_what_a_runtime_would_refuse_is_reported(change: dict[str, Any], problem: str) -> None:
    found = cdi_schema.problems(changed(change))
    assert any(problem in each for each in found), found


@cases("document", None, [], "", 7, {})
def test_what_is_no_spec_at_all_is_reported(document: Any) -> None:
    assert cdi_schema.problems(document)
