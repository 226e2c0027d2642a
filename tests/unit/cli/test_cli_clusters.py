"""Several clusters in one table: those that answer, those that do not, and how long that takes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodedevices_kubectl.listing import read_clusters
from nodedevices_kubectl.session import Machine, Session
from support.command_line import CommandLine, JsonObject, gpu, node
from support.recorded_api import NODE_DEVICES, RecordedApi, recorded_api

NODES_TABLE = """\
CLUSTER   NAME     STATUS         MODEL                   DEVICES   HEALTHY   HELD     REASON                                               AGE
east      n1       Ready          NVIDIA-H100-80GB-HBM3   1         1         1        <none>                                               5d3h
west      n1       Ready          NVIDIA-H100-80GB-HBM3   2         2         0        <none>                                               5d3h
empty     <none>   NotInstalled   <none>                  <none>    <none>    <none>   <none>                                               <none>
gone      <none>   Unreachable    <none>                  <none>    <none>    <none>   API server http://127.0.0.1:1: Connection refused   <none>
"""  # noqa: E501 - as wide as it is printed


def kubeconfig(path: Path, servers: dict[str, str]) -> Path:
    named: list[JsonObject] = [{"name": name, "cluster": {"server": server}} for name, server in servers.items()]
    contexts = [{"name": name, "context": {"cluster": name}} for name in servers]
    path.write_text(json.dumps({"clusters": named, "contexts": contexts, "current-context": "east"}))
    return path


@pytest.fixture
def west() -> Iterator[RecordedApi]:
    with recorded_api() as api:
        api.add(NODE_DEVICES, node("n1", gpu(0), gpu(1)))
        yield api


@pytest.fixture
def fleet(api: RecordedApi, west: RecordedApi, tmp_path: Path) -> Iterator[CommandLine]:
    """east and west; empty, without our CRDs; gone, where nobody listens."""
    api.add(NODE_DEVICES, node("n1", gpu(0, "ml/train-0")))
    with recorded_api() as empty:
        servers = {"east": api.url, "west": west.url, "empty": empty.url, "gone": "http://127.0.0.1:1"}
        yield CommandLine({"KUBECONFIG": str(kubeconfig(tmp_path / "several", servers)), "HOME": str(tmp_path)})


def squeezed(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_one_table_shows_every_cluster_and_says_which_did_not_answer(fleet: CommandLine) -> None:
    assert fleet("--contexts", "east,west,empty,gone") == 1
    assert squeezed(fleet.out) == squeezed(NODES_TABLE)
    assert fleet.err.startswith("error: 1 of 4 clusters could not be read: gone: API server http://127.0.0.1:1: Conn")


def test_a_cluster_that_refuses_is_not_said_to_be_unreachable(fleet: CommandLine, west: RecordedApi) -> None:
    west.refusals[NODE_DEVICES] = [403]
    assert fleet("--contexts", "west") == 1
    assert squeezed(fleet.out)[1][:3] == ["west", "<none>", "Forbidden"]
    assert "Is the agent running?" not in fleet.err, "nobody knows"


def test_when_all_answer_it_is_well(fleet: CommandLine) -> None:
    assert fleet("devices", "--contexts", "west,east", "-o", "name") == 0
    assert fleet.out.split() == ["west:n1/gpu-0", "west:n1/gpu-1", "east:n1/gpu-0"]
    fleet("pods", "-A", "--contexts", "east", "-o", "json")
    assert [(each["cluster"], each["pod"]) for each in json.loads(fleet.out)["items"]] == [("east", "train-0")]


def test_a_node_is_looked_for_in_each(fleet: CommandLine, west: RecordedApi) -> None:
    west.add(NODE_DEVICES, node("n7"))
    assert fleet("nodes", "n7", "--contexts", "east,west", "-o", "name") == 0
    assert fleet.out == "west:n7\n"


def test_all_contexts_are_read_once_for_each_cluster(api: RecordedApi, west: RecordedApi, tmp_path: Path) -> None:
    api.add(NODE_DEVICES, node("n1"))
    file = kubeconfig(tmp_path / "several", {"again": api.url, "east": api.url, "west": west.url})
    run = CommandLine({"KUBECONFIG": str(file), "HOME": str(tmp_path)})
    assert run("nodes", "--all-contexts", "-o", "name") == 0
    assert run.out.split() == ["east:n1", "west:n1"]
    assert run.err == f"again is the same cluster as east ({api.url}).\n"


def test_a_cluster_that_hangs_delays_the_others_no_longer_than_said(fleet: CommandLine, west: RecordedApi) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:  # takes connections, and never answers
        path = Path(fleet.environment["KUBECONFIG"])
        kubeconfig(path, {"east": f"http://127.0.0.1:{hangs.getsockname()[1]}", "west": west.url})
        session = Session(Machine(fleet.environment))
        answers = read_clusters(session, ["east", "west"], (), "", seconds=0.5)
    assert [answer.state for answer in answers] == ["Unreachable", "Answered"]
    assert "no answer" in answers[0].problem


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("nodes", "--contexts", "eats"), 1, "--contexts eats: there is no such context; did you mean east?"),
        (("nodes", "--contexts", "east", "--all-contexts"), 2, "give --contexts or --all-contexts, not both"),
        (("nodes", "--contexts", "east", "--context", "west"), 2, "give --context, or several clusters, not both"),
        (("nodes", "--contexts", "east", "-w"), 2, "-w: only valid with one cluster; give --context"),
        (("pods", "--contexts", "east"), 2, "of several clusters: give -n NAMESPACE or -A"),
    ],
)
def test_what_several_clusters_cannot_do_is_refused(
    fleet: CommandLine, api: RecordedApi, command: tuple[str, ...], code: int, said: str
) -> None:
    assert fleet(*command) == code
    assert said in fleet.err
    assert not api.requests
