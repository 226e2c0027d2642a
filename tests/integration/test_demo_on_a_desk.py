"""`make demo-on` before it does anything: a real API server, and contexts of several names for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import desk
from support.apiserver import ApiServer
from support.kubectl import Kubectl, NotReached

KIND = desk.named("kind")
UNREACHABLE = "https://127.0.0.1:1"


@pytest.fixture
def program(apiserver: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """kubectl, with a user's kubeconfig: the context kind-kind, and another one, which is the current one. There is a
    program kind."""
    config = json.loads(apiserver.kubeconfig.read_text())
    [ours] = config["contexts"]
    config["clusters"].append({"name": "prod", "cluster": {"server": UNREACHABLE}})
    config["contexts"] = [
        {"name": "kind-kind", "context": ours["context"]},
        {"name": "prod", "context": {"cluster": "prod", "user": ours["context"]["user"]}},
    ]
    config["current-context"] = "prod"
    (tmp_path / "config").write_text(json.dumps(config))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kind").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "kind").chmod(0o755)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{apiserver.kubectl.parent}:/usr/bin:/bin")
    return "kubectl"


def a_node(kubectl: Kubectl, provider: str) -> None:
    kubectl.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w"}, "spec": {"providerID": provider}})


def test_what_is_asked_and_done_goes_to_the_named_context_and_not_to_the_current_one(
    program: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    a_node(kubectl, "kind://docker/kind/w")
    on_the_desk = desk.checked(KIND, tmp_path, program)
    assert UNREACHABLE not in on_the_desk.kubeconfig.read_text()
    assert on_the_desk.kubeconfig.stat().st_mode & 0o077 == 0
    assert [one["metadata"]["name"] for one in on_the_desk.json("get", "nodes")["items"]] == ["w"]


def test_a_real_cluster_that_is_called_like_one_of_kind_is_refused(
    program: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    a_node(kubectl, "aws:///eu-1a/i-0abc")
    with pytest.raises(NotReached, match=r"these nodes are not of kind's cluster kind: w. Nothing was done"):
        desk.checked(KIND, tmp_path, program)


@pytest.mark.usefixtures("kubectl")
def test_a_cluster_that_does_not_exist_is_not_found_and_the_tools_command_is_named(
    program: str, tmp_path: Path
) -> None:
    with pytest.raises(NotReached, match=r"there is no context k3d-dev .* k3d cluster create"):
        desk.pinned(desk.named("k3d-dev"), tmp_path, program)
