"""docs/kubectl.md shows what the commands print: each block is run, in the page's order, beside one recorded fleet."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.command_line import CommandLine, JsonObject, condition, failed, gpu, node
from support.recorded_api import EVENTS, NODE_DEVICES, NODES, POLICIES, RecordedApi

PAGE = Path(__file__).parents[3] / "docs/kubectl.md"
PROMPT = "$ kubectl nodedevices"


def blocks() -> list[tuple[str, str]]:
    """Each command with what the page shows below it."""
    found = []
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PAGE.read_text(), re.MULTILINE):
        text = re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
        for each in re.split(rf"^(?={re.escape(PROMPT)})", text, flags=re.MULTILINE):
            if each.startswith(PROMPT):
                command, _, shown = each.partition("\n")
                found.append((command.removeprefix(PROMPT).partition("#")[0], shown.strip("\n")))
    return found


def shared(item: JsonObject) -> JsonObject:
    """With a section that the policy `share` supplies."""
    item["spec"] = {
        "config": {"sharing": {"strategy": "none"}},
        "configHash": "ab",
        "policies": [{"name": "share", "generation": 3, "priority": 10, "sections": ["sharing"]}],
    }
    item["status"] |= {"appliedConfigHash": "ab", "configuration": {"sources": ["policy", "file"]}}
    return item


def a_node(name: str, gpus: int, **labels: str) -> JsonObject:
    ready = condition("Ready", "True", "KubeletReady")
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": [ready]},
    }


def agent(on: str) -> JsonObject:
    labels = {"app.kubernetes.io/name": "nodedevices", "app.kubernetes.io/component": "agent"}
    containers = [{"name": "agent", "ports": [{"name": "http", "containerPort": 9735}]}]
    return {"metadata": {"name": f"agent-{on}", "labels": labels}, "spec": {"nodeName": on, "containers": containers}}


def measured(*devices: tuple[int, float, float, float, float]) -> str:
    """The metrics of an agent: of each device its index, how busy it is, GiB in use, watts, and degrees."""
    lines = []
    for index, busy, used, watts, degrees in devices:
        labels = f'{{index="{index}",uuid="{gpu(index)["id"]}"}}'
        values = {"memory_used_bytes": used * 2**30, "memory_bytes": 80 * 2**30, "power_watts": watts}
        values |= {"utilization_ratio": busy, "temperature_celsius": degrees}
        lines += [f"nodedevices_device_{name}{labels} {value}" for name, value in values.items()]
    return "\n".join(lines)


def unused(item: JsonObject, word: str, since: str) -> JsonObject:
    """The same device, which its holder does not use since then."""
    item["holders"][0] |= {"idle": word, "idleSince": since}
    return item


def record(api: RecordedApi) -> None:
    message = "1 of 4: gpu-2 Xid79 (ResetBus; held by ml/train-0)"
    api.add(
        NODE_DEVICES,
        node(
            "n1",
            gpu(0, "ml/train-0"),
            unused(gpu(1, "ml/train-0"), "NeverUsed", "2026-11-23T09:00:00Z"),
            gpu(2, "ml/train-0", **failed()),
            gpu(3),
            conditions=[condition("DevicesHealthy", "False", "DeviceFault", message, since="2026-11-23T11:55:30Z")],
        ),
        shared(node("n2", gpu(0, "web/serve-1"), gpu(1))),
        node("n3", gpu(0), gpu(1), conditions=[condition("Ready", "False", "DriverNotLoaded", "nvml: no driver")]),
    )
    pods = "/api/v1/namespaces/nodedevices-system/pods"
    api.add(pods, agent("n2"))
    api.texts[f"{pods}/agent-n2:9735/proxy/metrics"] = measured((0, 0.97, 61.0, 650, 71), (1, 0, 0.5, 70, 34))
    event = {"type": "Warning", "reason": "DeviceFault", "lastTimestamp": "2026-11-23T11:55:31Z"}
    told = "gpu-2: Xid79: GPU has fallen off the bus (XID 79); reset its bus. Held by ml/train-0."
    api.add(EVENTS, {"metadata": {"name": "e1"}, "message": told, **event})
    api.add(NODES, a_node("n1", 3), a_node("n2", 2, pool="inference"), a_node("n3", 2))
    api.singles["/apis/coordination.k8s.io/v1/namespaces/nodedevices-system/leases/nodedevices-operator"] = {
        "spec": {"holderIdentity": "nodedevices-operator-6d9c7b5f4d-x2x7k", "renewTime": "2026-11-23T11:59:58.000000Z"}
    }
    go_on = "Change the policy, or continue anyway: kubectl nodedevices confirm policy/share resumed"
    message = f"n2: 1 of 2 devices are no longer offered; 4 nodes are waiting. {go_on}"
    api.add(
        POLICIES,
        {
            "metadata": {"name": "share", "generation": 3, "resourceVersion": "1"},
            "spec": {
                "nodeSelector": {"matchLabels": {"pool": "inference"}},
                "priority": 10,
                "sharing": {"strategy": "none"},
            },
            "status": {"conditions": [condition("RolledOut", "False", "Stopped", message)]},
        },
    )


def files() -> dict[str, str]:
    """What the page says to have in files: a block of YAML that begins with the file's name."""
    return dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def test_the_page_shows_what_the_commands_print(
    api: RecordedApi, kubectl: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(api)
    monkeypatch.chdir(tmp_path)
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    shown = blocks()
    assert len(shown) >= 5
    (share,) = api.objects[POLICIES]
    going = condition("RolledOut", "False", "Progressing")
    kubectl.meanwhile = lambda _: share["status"].update(conditions=[going])
    for command, expected in shown:
        kubectl(*shlex.split(command))
        assert (kubectl.out + kubectl.err).strip("\n") == expected, command
