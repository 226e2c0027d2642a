"""What the demo prints for people: a hint that helps, and nothing but text where there is no terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from demo.__main__ import shell
from demo.stage import Stage
from support.cluster_provider import ClusterProvider
from support.kubectl import Kubectl
from support.terminal import ESCAPE


def test_the_demos_last_words_make_kubectl_work() -> None:
    kubectl = Kubectl(Path("/state/kubeconfig"), "/cache/bin/kubectl")
    ours = ClusterProvider(kubectl, ("n1", "n2"), {}, SimpleNamespace())  # type: ignore[arg-type]
    assert shell(ours) == "export KUBECONFIG=/state/kubeconfig PATH=/cache/bin:$PATH"
    theirs = ClusterProvider(Kubectl(Path("/home/me/config")), ("a", "b"), {}, None)
    assert shell(theirs) == "export KUBECONFIG=/home/me/config"


def test_the_demo_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    stage.step("A step")
    stage.done("it is up")
    assert ESCAPE not in capsys.readouterr().out
