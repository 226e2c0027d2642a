"""The rig's cluster for tests, demo and benchmarks: started with our images on its nodes, gone when the block ends.

What a test may do to it beyond kubectl: stop kubelets and the API server, and run a command in a node's namespaces.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.rig import control, images, layout, rig, runs
from cluster.rig.problem import Progress, RigError
from support.kubectl import NotReached
from support.patience import CLUSTER_PATIENCE_SECONDS

NODES = 2


@dataclass(frozen=True)
class Rig:
    """One that is up."""

    rig: rig.Rig

    @property
    def name(self) -> str:
        return self.rig.layout.name

    @property
    def kubeconfig(self) -> Path:
        """cluster-admin's, complete in itself."""
        return self.rig.layout.kubeconfig

    @property
    def kubectl(self) -> Path:
        """The kubectl of the same release."""
        return self.rig.kubectl

    @property
    def images(self) -> Mapping[str, str]:
        """Name in the manifests -> the reference that is on every node."""
        return images.references()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.rig.layout.nodes)

    @property
    def log_dir(self) -> Path:
        """What etcd, the API server, kubelets, ... wrote."""
        return self.rig.layout.logs

    @property
    def audit_log(self) -> Path:
        """The requests of our parts to the API server."""
        return self.rig.layout.audit_log

    def node_argv(self, node: str) -> list[str]:
        """What to put before a command so that it runs in a node's network, mount and pid namespaces."""
        return self.rig.runner(node).argv()

    def node_exec(self, node: str, argv: Sequence[str]) -> str:
        """Output of a command in a node's namespaces; CalledProcessError when it fails."""
        return subprocess.run(
            [*self.node_argv(node), *argv], capture_output=True, text=True, timeout=CLUSTER_PATIENCE_SECONDS, check=True
        ).stdout

    def stop_kubelet(self, node: str) -> None:
        """As systemd would; pods keep running."""
        self.rig.runner(node).stop_kubelet()

    def start_kubelet(self, node: str) -> None:
        """Returns at once: what a test waits for is its own matter."""
        self.rig.runner(node).start_kubelet()

    def restart_kubelet(self, node: str) -> None:
        self.stop_kubelet(node)
        self.start_kubelet(node)

    def reboot(self, node: str) -> None:
        """As without power. Returns when the kubelet is starting."""
        self.rig.runner(node).reboot()

    def stop_apiserver(self) -> None:
        """kill -9; etcd keeps its data."""
        self.rig.stop_apiserver()

    def start_apiserver(self) -> None:
        """Returns when it is ready."""
        self.rig.start_apiserver()

    def restart_controllers(self) -> None:
        """Controller-manager and scheduler. Returns at once."""
        self.rig.restart_controllers()

    @contextmanager
    def second_scheduler(self, config: Path, *flags: str) -> Iterator[None]:
        """A kube-scheduler beside the cluster's own, with that KubeSchedulerConfiguration."""
        self.rig.control.start_second_scheduler(f"--config={config}", *flags)
        try:
            yield
        finally:
            self.rig.control.stop(control.SECOND_SCHEDULER)


@contextmanager
def running(name: str, *, keep: bool = False, node_status: str = rig.NODE_STATUS) -> Iterator[Rig]:
    """A new cluster with our images. `keep` leaves it up when the block ends; `node_status`: how often a kubelet writes
    its Node.

    What an earlier run of that name left behind goes first; a run that is still at work keeps its own, and this one is
    called NAME-2. A process that is not part of a run becomes one, unless it is to `keep` the cluster. NotReached, with
    the one line that says why, when a cluster cannot be had here.
    """
    progress = Progress()
    with ExitStack() as ending:
        try:
            rig.preflight(NODES)
            if not runs.current():
                runs.remove_left(progress.say)
                if not keep:
                    runs.begin()
            archives = images.local(progress)
            name = own_name(name, ending)
            folder = layout.default_folder(name)
            rig.down(folder)
            made = rig.up(name, folder, NODES, archives, progress, node_status=node_status)
        except RigError as error:
            raise NotReached(str(error)) from error
        if not keep:
            ending.callback(rig.down, folder)
        yield Rig(made)


def own_name(name: str, ending: ExitStack) -> str:
    """The first of NAME, NAME-2, ... that no living run has; it is ours until `ending`."""
    for number in range(1, layout.MOST_CLUSTERS + 1):
        candidate = name if number == 1 else f"{name}-{number}"
        with suppress(RigError):
            ending.enter_context(layout.lock(f"a run on {candidate}"))
            return candidate
    raise RigError(f"{layout.MOST_CLUSTERS} runs on clusters named {name} are at work already")
