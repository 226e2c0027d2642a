"""A report that etcd would refuse is cut to what fits: what is well first, no device, and it says what is missing."""

from __future__ import annotations

import json
from typing import Any

from nodedevices_api.nodedevices import NodeDevicesStatus
from nodedevices_plugin.status.fitting import fitting

MOST = 40_000  # bytes, and as few devices


def holders(count: int, name: str = "train") -> list[dict[str, Any]]:
    """The last one is the oldest."""
    return [
        {
            "namespace": "team-a",
            "pod": f"{name}-{number:04}-abcde",
            "container": "main",
            "resource": "nvidia.com/gpu",
            "since": f"2026-11-21T11:00:00.{count - number:06}Z",
        }
        for number in range(count)
    ]


def device(index: int, *, held: int = 0, partitions: int = 0, state: str = "Healthy") -> list[dict[str, Any]]:
    """A device, followed by its partitions, with so many holders of it or of each of them."""
    reason = {} if state == "Healthy" else {"reason": "Xid79"}
    whole = {
        "id": f"GPU-{index:08x}-2dcb-50f8-9ab7-d92d6f9c0e82",
        "name": f"gpu-{index}",
        "type": "gpu",
        "index": index,
        "health": {"state": state, "since": "2026-11-21T11:00:00Z"} | reason,
    }
    parts = [
        whole
        | {
            "id": f"MIG-{index:04x}{number:04x}-2dcb-50f8-9ab7-d92d6f9c0e82",
            "name": f"gpu-{index}-mig-{number}",
            "index": number,
            "parent": whole["name"],
            "profile": "1g.10gb",
            "capacity": {"memory": "10Gi"},
            "holders": holders(held),
        }
        for number in range(partitions)
    ]
    return [whole, *parts] if parts else [whole | {"holders": holders(held)}]


def size(status: Any) -> int:
    return len(json.dumps(status, separators=(",", ":")))


def test_what_fits_stays_and_where_everything_is_at_fault_each_device_still_shows_it() -> None:
    status = {"devices": [*device(0, held=64), *device(1, partitions=7, held=1)]}
    assert fitting(status) is status
    ill = (device(index, partitions=16, held=16, state="Unhealthy") for index in range(16))
    found = fitting({"devices": [each for entries in ill for each in entries]}, MOST)
    assert size(found) <= MOST
    assert {each["health"]["state"] for each in found["devices"]} == {"Unhealthy"}
    parts = [each for each in found["devices"] if "parent" in each]
    assert len({part["parent"] for part in parts}) == 16
    assert all(part["holders"] for part in parts)


def test_healthy_devices_lose_holders_first_and_say_how_many() -> None:
    states = {7: "Unhealthy"}
    status = {"devices": [each for at in range(16) for each in device(at, held=64, state=states.get(at, "Healthy"))]}
    found = fitting(status, MOST)
    assert size(status) > MOST >= size(found)
    shown = found["devices"]
    assert shown[7] == status["devices"][7], "its pods are to be marked"
    assert {len(each["holders"]) + each["holdersTruncated"] for each in shown if each["index"] != 7} == {64}
    assert shown[0]["holders"][-1] == status["devices"][0]["holders"][-1], "the oldest stay, as in every report"
    NodeDevicesStatus.model_validate(found)


def test_healthy_partitions_go_before_faulty_ones_and_no_device_is_left_out() -> None:
    status = {"devices": [each for index in range(16) for each in device(index, partitions=64, held=1)]}
    ill = status["devices"][9 * 65 + 64]
    ill["health"] = {"state": "Unhealthy", "reason": "Xid94", "since": "2026-11-21T11:00:00Z"}
    found = fitting(status, MOST)
    assert size(found) <= MOST
    whole = [each for each in found["devices"] if "parent" not in each]
    parts = [each for each in found["devices"] if "parent" in each]
    assert [each["index"] for each in whole] == list(range(16))
    assert ill in parts
    assert len(parts) + found["partitionsTruncated"] == 16 * 64
    held = sum(len(each.get("holders", ())) + each.get("holdersTruncated", 0) for each in found["devices"])
    assert held == 16 * 64, "holders of what is left out are counted at its device"
    NodeDevicesStatus.model_validate(found)
