"""The command line as a process: pipes, credentials of a plugin, and what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import CommandLine, gpu, node
from support.recorded_api import NODE_DEVICES, RecordedApi


def test_the_reader_of_a_pipe_may_leave(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, *(node(f"n{number}", gpu(0)) for number in range(800)))
    command = "kubectl-nodedevices nodes -o wide | head -n 1; echo ${PIPESTATUS[0]}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], env={**kubectl.environment, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", "1"]


@pytest.mark.parametrize("command", ["./bin/login", "bin/login", "login"])
def test_an_exec_plugin_is_that_of_the_kubeconfigs_folder_or_of_the_path_and_never_of_the_current_folder(
    api: RecordedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    home, clone = tmp_path / "home", tmp_path / "clone"
    for folder, token in ((home, "own"), (clone, "of-somebody-else")):
        for place in (folder / "bin/login", folder / "login"):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f'#!/bin/sh\necho \'{{"status": {{"token": "{token}"}}}}\'\n')
            place.chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never"}
    environment = {"KUBECONFIG": str(api.kubeconfig(home / "config", token="", exec=plugin))}
    monkeypatch.chdir(clone)
    kubectl = CommandLine({**environment, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"})
    assert kubectl("nodes") == 0
    assert api.headers[-1]["Authorization"] == "Bearer own"
    if command == "login":
        for way_in in (".", ""):
            assert CommandLine({**environment, "PATH": way_in})("nodes") == 1
        assert len(api.headers) == 1


def test_credentials_go_to_the_server_and_nowhere_else(api: RecordedApi, kubectl: CommandLine, tmp_path: Path) -> None:
    assert kubectl("nodes") == 0
    assert api.headers[-1]["Authorization"] == "Bearer not-a-secret"
    assert "not-a-secret" not in kubectl.out + kubectl.err
    plugin = tmp_path / "login"
    status = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "issued"}}
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(status)}'\n")
    plugin.chmod(0o755)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    file = api.kubeconfig(tmp_path / "other", token="", exec=command, **{"as": "jane"})
    assert kubectl("nodes", "--kubeconfig", str(file)) == 0
    assert (api.headers[-1]["Authorization"], api.headers[-1]["Impersonate-User"]) == ("Bearer issued", "jane")


def test_it_starts_without_loading_what_is_slow() -> None:
    """The target is 0.4 s from the start to the first request; each of these alone takes more."""
    told = (["--help"], ["devices", "--help"], ["policy", "dry-run", "--help"], ["nodes", "--kubeconfig", "/nowhere"])
    script = "import sys; from nodedevices_kubectl.main import run; "
    script += f"[run(each) for each in {told}]; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    slow = {"pydantic", "kubernetes", "structlog", "grpc", "kopf", "rich", "aiohttp", "requests", "asyncio"}
    assert not slow & set(done.stderr.split())


@pytest.mark.parametrize("program", ["main", "complete"])
def test_an_installation_of_the_agent_alone_says_what_the_command_lacks(program: str) -> None:
    script = (
        f"import sys; sys.modules['click'] = None; from nodedevices_kubectl.__main__ import {program} as run; run()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this installation lacks click" in done.stderr
    assert done.stderr.endswith("which it needs; pip install 'nodedevices[cli]' has it\n")
