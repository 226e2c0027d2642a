"""The Tiltfile, run as the Python that its Starlark is, against stubs of tilt's functions.

tilt itself cannot be had where these tests run: that tilt accepts every argument is not proven here, only that the file
runs, and names things of this repository that exist.
"""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import MagicMock

import pytest
from support.kustomize import kubectl, render
from support.repository import ROOT

# tilt's functions that the file may call. A name that is not here is a mistake in the file.
NAMES = (
    *("allow_k8s_contexts", "docker_build_with_restart", "k8s_resource", "k8s_yaml", "load", "local_resource"),
    *("fall_back_on", "run", "sync", "TRIGGER_MODE_MANUAL"),
)


@pytest.fixture(scope="module")
def tilt() -> dict[str, Any]:
    binary = kubectl()
    if binary is None:
        pytest.skip("no kubectl: `make cluster-tools` builds one")
    names: dict[str, Any] = {name: MagicMock() for name in NAMES}
    names["kustomize"] = lambda folder: render(ROOT / folder, binary)
    names["decode_yaml_stream"] = names["encode_yaml_stream"] = lambda objects: objects
    exec((ROOT / "Tiltfile").read_text(), names)
    return names


def test_only_local_clusters_are_allowed(tilt: dict[str, Any]) -> None:
    [contexts] = tilt["allow_k8s_contexts"].call_args.args
    assert all(re.fullmatch(r"docker-desktop|minikube|nodedevices|(kind|k3d)-nodedevices", one) for one in contexts)


def test_both_images_come_from_our_dockerfiles_and_what_they_need_exists(tilt: dict[str, Any]) -> None:
    built = {call.args[0]: call.kwargs for call in tilt["docker_build_with_restart"].call_args_list}
    assert set(built) == {"nodedevices-agent", "nodedevices-operator"}
    for name, kwargs in built.items():
        for path in [kwargs["dockerfile"], *kwargs["only"]]:
            assert (ROOT / path).exists(), path
        assert kwargs["entrypoint"] == [name]
        assert f"{name} = " in (ROOT / "pyproject.toml").read_text(), "its entry point is one of our commands"


def test_edits_of_every_package_reach_the_container(tilt: dict[str, Any]) -> None:
    copied = {
        found
        for part in ("plugin", "operator")
        for found in re.findall(r"^COPY (\w+/nodedevices_\w+) ", (ROOT / part / "Dockerfile").read_text(), re.MULTILINE)
    }
    assert {call.args[0] for call in tilt["sync"].call_args_list} == copied
    assert {call.args[1] for call in tilt["sync"].call_args_list} == {
        f"/app/packages/{one[one.index('/') + 1 :]}" for one in copied
    }


def test_every_resource_and_every_command_of_tilt_is_one_of_ours(tilt: dict[str, Any]) -> None:
    [objects] = tilt["k8s_yaml"].call_args.args
    names = {one["metadata"]["name"] for one in objects if one["kind"] in {"DaemonSet", "Deployment"}}
    assert {call.args[0] for call in tilt["k8s_resource"].call_args_list} == names
    for call in tilt["local_resource"].call_args_list:
        target = call.kwargs["cmd"].removeprefix("make ")
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
