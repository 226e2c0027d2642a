"""The Tiltfile, evaluated by a Starlark interpreter against recorded stubs of tilt's functions.

tilt itself cannot be had where these tests run: that tilt accepts every argument is not proven here, only that the file
evaluates, says what it should, and names things of this repository that exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import starlark
import yaml
from support.kustomize import kubectl, render

ROOT = Path(__file__).resolve().parents[2]
# tilt's functions that the file may call, and what they give back. A name that is not here is a mistake in the file.
RECORDED = ("allow_k8s_contexts", "docker_build_with_restart", "k8s_resource", "k8s_yaml", "local_resource")


@dataclass
class Tilt:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def kustomize(folder: str) -> str:
    binary = kubectl()
    assert binary is not None
    return yaml.safe_dump_all(render(ROOT / folder, binary))


@pytest.fixture(scope="module")
def tilt() -> Tilt:
    if kubectl() is None:
        pytest.skip("no kubectl: `make cluster-tools` builds one")
    said = Tilt()
    stubs = {
        **{name: recorder(said, name) for name in RECORDED},
        "sync": lambda local, remote: ["sync", local, remote],
        "run": lambda command: ["run", command],
        "fall_back_on": lambda files: ["fall_back_on", files],
        "kustomize": kustomize,
        "decode_yaml_stream": lambda text: list(yaml.safe_load_all(text)),
        "encode_yaml_stream": yaml.safe_dump_all,
    }

    def extension(name: str) -> starlark.FrozenModule:
        assert name == "ext://restart_process"
        module = starlark.Module()
        module.add_callable("docker_build_with_restart", stubs["docker_build_with_restart"])
        return module.freeze()

    module = starlark.Module()
    for name, stub in stubs.items():
        if name != "docker_build_with_restart":
            module.add_callable(name, stub)
    module["TRIGGER_MODE_MANUAL"] = "manual"
    program = starlark.parse("Tiltfile", (ROOT / "Tiltfile").read_text(), starlark.Dialect.extended())
    starlark.eval(module, program, starlark.Globals.standard(), starlark.FileLoader(extension))
    return said


def recorder(said: Tilt, name: str) -> Any:
    def record(*args: Any, **kwargs: Any) -> None:
        said.calls.append((name, args, kwargs))

    return record


def test_only_local_clusters_are_allowed(tilt: Tilt) -> None:
    [((contexts,), _)] = tilt.of("allow_k8s_contexts")
    assert all(re.fullmatch(r"docker-desktop|minikube|nodedevices|(kind|k3d)-nodedevices", one) for one in contexts)


def test_both_images_come_from_our_dockerfiles_and_what_they_need_exists(tilt: Tilt) -> None:
    built = {args[0]: kwargs for args, kwargs in tilt.of("docker_build_with_restart")}
    assert set(built) == {"nodedevices-agent", "nodedevices-operator"}
    for name, kwargs in built.items():
        for path in [kwargs["dockerfile"], *kwargs["only"]]:
            assert (ROOT / path).exists(), path
        assert kwargs["entrypoint"] == [name]
        assert f"{name} = " in (ROOT / "pyproject.toml").read_text(), "its entry point is one of our commands"


def test_edits_of_every_package_reach_the_place_where_the_dockerfile_puts_them(tilt: Tilt) -> None:
    for _, kwargs in tilt.of("docker_build_with_restart"):
        synced = [step[1:] for step in kwargs["live_update"] if step[0] == "sync"]
        dockerfile = (ROOT / kwargs["dockerfile"]).read_text()
        assert {local for local, _ in synced} == set(
            re.findall(r"^COPY (\w+/nodedevices_\w+) ", dockerfile, re.MULTILINE)
        )
        for local, remote in synced:
            assert (ROOT / local / "__init__.py").exists()
            assert Path(remote).name == Path(local).name
            assert str(Path(remote).parent) in dockerfile, f"{remote}: not a place that the Dockerfile knows"


def test_the_overlay_demo_is_installed_with_writable_containers_and_nothing_else_changed(tilt: Tilt) -> None:
    [((text,), _)] = tilt.of("k8s_yaml")
    installed = list(yaml.safe_load_all(text))
    overlay = list(yaml.safe_load_all(kustomize("manifests/overlays/demo")))
    for objects in (installed, overlay):
        for one in objects:
            if one["kind"] in {"DaemonSet", "Deployment"}:
                pod = one["spec"]["template"]["spec"]
                del pod["securityContext"]
                read_only = [c["securityContext"].pop("readOnlyRootFilesystem") for c in pod["containers"]]
                assert read_only == [objects is overlay] * len(read_only)
    assert installed == overlay


def test_every_resource_that_tilt_shows_is_in_the_overlay(tilt: Tilt) -> None:
    [((text,), _)] = tilt.of("k8s_yaml")
    names = {one["metadata"]["name"] for one in yaml.safe_load_all(text) if one["kind"] in {"DaemonSet", "Deployment"}}
    assert {args[0] for args, _ in tilt.of("k8s_resource")} == names


def test_the_commands_that_tilt_runs_are_targets_of_our_makefile(tilt: Tilt) -> None:
    for _, kwargs in tilt.of("local_resource"):
        target = kwargs["cmd"].removeprefix("make ")
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
