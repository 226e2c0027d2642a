"""What `make demo` shows while it builds Kubernetes, which takes minutes, once on each machine.

Probe and agent need no kubelet to find devices and judge them; objects and `kubectl nodedevices` need an API server and
no node. So the first is shown at once, and the second as soon as Kubernetes is built, while the images are. Nothing is
faked but the hardware, which is a file: each command that is shown is run by a shell, as it stands there.

The build goes on beside it: its lines of progress come between blocks, never within one. Where everything is built
already nothing of this is shown, and it costs no more than asking.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.rig import binaries, images
from cluster.rig.problem import RigError
from demo.stage import Stage
from support.apiserver import ApiServer
from support.ending import end
from support.kubectl import Kubectl, KubectlError, NotReached, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("make", "--no-print-directory", "cluster-programs")
IMAGES = ("tests/cluster/cluster", "images")
LAST_WORDS = 3
NODE = "here"
WELL = "profile: h100 x 8\n"
STRUCK = WELL + "events: [{id: monday, device: 3, xid: 79}]\ndevices: [{index: 3, recoveryAction: ResetBus}]\n"
PROBE = (
    "nodedevices-probe simulated --profile 'h100 x 2' --once | "
    """python3 -m json.tool | grep -E '"(productName|pciBusId|numaNode|memory)"'"""
)
AGENT = (
    "env NODEDEVICES_HEALTH_ADDRESS=off NODEDEVICES_LOG_FORMAT=text \\\n"
    f"    nodedevices-agent --node-name {NODE} --probe simulated --simulated $PWD/devices.yaml \\\n"
    "    --kubelet-dir $PWD --cdi-spec-dirs $PWD --http-address off"
)


class Build:
    """A command that goes on while something is shown; its lines are said between blocks."""

    def __init__(self, stage: Stage, command: Sequence[str]) -> None:
        self._stage = stage
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.strip())
            self._stage.aside(line.rstrip())

    def wait(self) -> None:
        """Return when it has ended well. NotReached: it has not; its last lines."""
        code = self._process.wait()
        self._thread.join()
        if code:
            raise NotReached(" / ".join(self._lines[-LAST_WORDS:]) or f"the build ended with {code} and said nothing")

    def __enter__(self) -> Build:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def build(stage: Stage, programs: Sequence[str] = PROGRAMS, pictures: Sequence[str] = IMAGES) -> None:
    """Build what this machine lacks for the cluster, and meanwhile show what needs no cluster."""
    shows = binaries.find() is None
    with tempfile.TemporaryDirectory() as name:
        with Build(stage, programs) as running:
            if shows:
                with beside(stage):
                    without_kubernetes(stage, Path(name))
                stage.step("The rest waits for Kubernetes; its build goes on")
            running.wait()
        if shows and not images.built_already():
            with Build(stage, pictures) as running:
                with beside(stage), ApiServer(Path(name) / "apiserver") as server:
                    without_nodes(stage, Path(name), server)
                stage.step("The rest waits for the images; their build goes on")
                running.wait()


@contextmanager
def beside(stage: Stage) -> Iterator[None]:
    """What takes too long on a machine that is busy with the build does not end the demo."""
    try:
        yield
    except (NotReached, KubectlError, RigError) as error:
        stage.note(f"Not reached beside the build: {error}")


def without_kubernetes(stage: Stage, folder: Path) -> None:
    """Devices, and what the agent makes of a fault: without an API server, and before a kubelet is there."""
    stage.step("While Kubernetes is built, which takes minutes, once: a probe reads the hardware, here a file")
    shell = Shell(stage, folder / "alone")
    shell.show(PROBE)
    stage.step("The agent decides what a kubelet would get of it")
    shell.write(WELL)
    with shell.agent("--standalone"):
        shell.wait_for_log("KubeletUnreachable")
        shell.show("grep -e offering -e KubeletUnreachable agent.log")
        stage.step("XID 79 strikes GPU 3")
        shell.write(STRUCK)
        shell.show("cat devices.yaml")
        shell.wait_for_log("healthy=7")
        shell.show("grep -A 1 'not healthy' agent.log")
    stage.done("7 of 8 are offered, as soon as there is somebody to offer them to")


def without_nodes(stage: Stage, folder: Path, server: ApiServer) -> None:
    """Objects and the plugin, on an API server alone."""
    stage.step("Kubernetes is built. While the images are: an API server alone, NodeDevices, and kubectl")
    shell = Shell(stage, folder / "api", kubeconfig=server.kubeconfig, kubectl=server.kubectl)
    kubectl = Kubectl(server.kubeconfig, str(server.kubectl))
    shell.show(f"kubectl apply --server-side -k {ROOT / 'crds'}")
    wait_until("the CRDs are served", lambda: kubectl.run("get", "nodedevices,devicepolicies") == "")

    def status() -> dict[str, Any]:
        found: dict[str, Any] = (kubectl.get("nodedevices", NODE) or {}).get("status") or {}
        return found

    shell.write(WELL)
    with shell.agent("--kubeconfig $KUBECONFIG"):
        wait_until("the agent has written its object", lambda: status().get("summary", {}).get("healthy") == 8)
        shell.show("kubectl get nodedevices")
        shell.write(STRUCK)
        wait_until("the object shows the fault", lambda: status()["summary"]["healthy"] == 7)
        shell.show("kubectl nodedevices devices")
        shell.show(f"kubectl nodedevices describe {NODE}/gpu-3")
    stage.done("not ready, as no kubelet is there: nodes and pods come now")


class Shell:
    """A folder in which a person would type; with our programs on the PATH."""

    def __init__(
        self, stage: Stage, folder: Path, *, kubeconfig: Path | None = None, kubectl: Path | None = None
    ) -> None:
        (folder / "device-plugins").mkdir(parents=True)  # as below a kubelet's directory
        self._stage = stage
        self._folder = folder
        programs = [Path(sys.executable).parent, *([kubectl.parent] if kubectl else [])]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NODE", "KUBE"))}
        self._environment = {**kept, "PATH": ":".join([*map(str, programs), os.environ["PATH"]]), "NO_COLOR": "1"}
        if kubeconfig:
            self._environment["KUBECONFIG"] = str(kubeconfig)

    def write(self, devices: str) -> None:
        """The hardware from now on."""
        new = self._folder / "devices.new"
        new.write_text(devices)
        new.replace(self._folder / "devices.yaml")

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotReached(f"{command}: exit {done.returncode}: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def show(self, command: str) -> None:
        self._stage.shown(command, self.run(command))

    def wait_for_log(self, text: str) -> None:
        log = self._folder / "agent.log"
        wait_until(f"the agent's log says {text}", lambda: text in log.read_text(), every=0.05)

    @contextmanager
    def agent(self, flag: str) -> Iterator[None]:
        """The agent, until the block ends."""
        command = f"{AGENT} {flag} > agent.log 2>&1"
        (self._folder / "agent.log").touch()
        running = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=self._folder, env=self._environment)
        try:
            self._stage.shown(f"{command} &", "")
            yield
        finally:
            end(running)
