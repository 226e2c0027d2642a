"""A report that etcd refuses whole: what the agent cuts of it is taken by the real kube-apiserver, and says so.

Written by the agent's own publisher and client. The real probe and kubelet cannot report as much on any machine here.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nodedevices_plugin.status.client import KubeStore
from nodedevices_plugin.status.fitting import fitting
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_plugin.status.publisher import Publisher
from support.apiserver import ApiServer
from support.fleet import stamp
from support.kubectl import Kubectl, KubectlError, wait_until

NODE = "large"
GPUS, HOLDERS, AFFECTED, PARTITIONS = 256, 64, 256, 64  # as many as the schema takes
FAULTY = 7


def whole_report() -> dict[str, Any]:
    """Of 256 GPUs in 64 shares, each share held by a pod with a long name; one GPU has failed."""
    began = stamp()
    return {
        "agent": {"version": "0.1.0", "startTime": began, "bootID": "boot"},
        "devices": [
            {
                "id": f"GPU-{index:08x}-2dcb-50f8-9ab7-d92d6f9c0e82",
                "name": f"gpu-{index}",
                "type": "gpu",
                "index": index,
                "capacity": {"memory": "80Gi"},
                "attributes": {"vendor": "nvidia", "productName": "NVIDIA H100 80GB HBM3"},
                "health": {"state": "Unhealthy", "reason": "Xid79", "since": began}
                if index == FAULTY
                else {"state": "Healthy", "since": began},
                "holders": [
                    {
                        "namespace": "team-a",
                        "pod": f"{index:03}-{number:02}-{'train' * 16}",
                        "container": "main",
                        "resource": "nvidia.com/gpu",
                        "since": stamp(-number, micro=True),
                    }
                    for number in range(HOLDERS)
                ],
            }
            for index in range(GPUS)
        ],
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": began}
        ],
    }


def cut_report() -> dict[str, Any]:
    """Of 256 GPUs in 64 partitions each, as probes may report them; one of each GPU has failed."""
    report = whole_report()
    for gpu in report["devices"]:
        del gpu["holders"]
    report["devices"] = [
        entry
        for gpu in report["devices"]
        for entry in (
            gpu,
            *(
                {
                    "id": f"MIG-{gpu['index']:04x}{number:04x}-2dcb-50f8-9ab7-d92d6f9c0e82",
                    "name": f"gpu-{gpu['index']}-mig-1g10gb-19-{number}",
                    "type": "gpu",
                    "index": number,
                    "parent": gpu["name"],
                    "profile": "1g.10gb",
                    "capacity": {"memory": "9856Mi", "multiprocessors": "16"},
                    "health": gpu["health"] if number else {**gpu["health"], "state": "Unhealthy", "reason": "Xid94"},
                }
                for number in range(PARTITIONS)
            ),
        )
    ]
    return report


async def publish(apiserver: ApiServer, kubectl: Kubectl, status: Any) -> dict[str, Any]:
    """What the API server has once the agent's publisher has written this."""
    store = KubeStore(str(apiserver.kubeconfig))
    publisher = Publisher(
        store=store, name=NODE, on_object=lambda _item: None, metrics=AgentMetrics(facts=lambda: None, probes=dict)
    )
    running = asyncio.create_task(publisher.run())
    publisher.want(status, may_create=True)
    try:
        return await asyncio.to_thread(
            wait_until, "a report", lambda: (kubectl.get("nodedevices", NODE) or {}).get("status")
        )
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.close()


def apply(kubectl: Kubectl, status: dict[str, Any], manager: str) -> None:
    head = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": NODE}}
    arguments = ("--server-side", "--subresource=status", f"--field-manager={manager}", "-f", "-")
    kubectl.run("apply", *arguments, stdin=json.dumps(head | {"status": status}))


async def test_a_report_that_etcd_refuses_is_cut_lands_and_says_what_is_missing(
    apiserver: ApiServer, kubectl: Kubectl
) -> None:
    whole = whole_report()
    shown = (await publish(apiserver, kubectl, fitting(whole)))["devices"]
    with pytest.raises(KubectlError, match="too large"):
        apply(kubectl, whole, "somebody")
    assert [each["id"] for each in shown] == [each["id"] for each in whole["devices"]]
    assert shown[FAULTY]["holders"] == whole["devices"][FAULTY]["holders"], "its pods are to be marked"
    assert {len(each.get("holders", ())) + each.get("holdersTruncated", 0) for each in shown} == {HOLDERS}
    assert sum(each.get("holdersTruncated", 0) for each in shown) > 0


async def test_of_as_many_partitions_as_there_may_be_those_at_fault_stay_and_it_is_said_how_many_went(
    apiserver: ApiServer, kubectl: Kubectl
) -> None:
    whole = cut_report()
    shown = await publish(apiserver, kubectl, fitting(whole))
    parts = [each for each in shown["devices"] if "parent" in each]
    assert len(shown["devices"]) - len(parts) == GPUS
    assert {each["parent"] for each in parts if each["health"].get("reason") == "Xid94"} == {
        each["name"] for each in whole["devices"] if "parent" not in each
    }
    assert len(parts) + shown["partitionsTruncated"] == GPUS * PARTITIONS


async def test_what_the_operator_adds_still_fits_beside_a_report_that_was_cut(
    apiserver: ApiServer, kubectl: Kubectl
) -> None:
    await publish(apiserver, kubectl, fitting(whole_report()))
    pods = [
        {
            "namespace": "n" * 63,
            "name": "p" * 253,
            "uid": f"{number:04}-1111-2222-3333-444455556666",
            "device": f"GPU-{FAULTY:08x}-2dcb-50f8-9ab7-d92d6f9c0e82",
            "reason": "Xid79",
            "since": stamp(),
        }
        for number in range(AFFECTED)
    ]
    apply(kubectl, {"affectedPods": pods}, "nodedevices-operator-status")
    found = kubectl.object("nodedevices", NODE)["status"]
    assert (len(found["affectedPods"]), len(found["devices"])) == (AFFECTED, GPUS)
