"""The whole cluster: up, down, and what tests do to it in between.

`up` begins with a folder and a layout in it, so that `down` knows what to take back from the first moment on; `down`
reads from the kernel what is there (processes by their mark, links, cgroups) instead of trusting notes, and so works
after a crash, after half an `up`, and when there is nothing. A failing `up` takes back what it made, but for the logs.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.rig import binaries, cgroups, layout, oci, processes, seeds
from cluster.rig.api import Api
from cluster.rig.control import CONTROLLERS, SECOND_SCHEDULER, Control
from cluster.rig.layout import Layout
from cluster.rig.nodes import PAUSE, NodeRunner
from cluster.rig.problem import Progress, RigError, wait_for

PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
    "runc": "runc",
    "busybox": "busybox-static",
}
USABLE_SECONDS = 60
KUBECTL = Path("bin", "kubectl")  # in a cluster's folder
NODE_STATUS = "10s"  # how often a kubelet writes its Node; by default, as on a user's cluster


def preflight(count: int) -> None:
    """RigError with the one thing that is missing here."""
    if platform.system() != "Linux":
        raise RigError(f"the cluster needs Linux (its kubelets are real); this is {platform.system()}")
    if not count:
        needed = {"openssl": "openssl", "setsid": "util-linux"}
    elif os.geteuid():
        raise RigError("the cluster needs root, because it runs kubelets, namespaces and mounts (--nodes 0 needs none)")
    else:
        needed = PROGRAMS
    missing = sorted({package for program, package in needed.items() if not shutil.which(program)})
    if missing:
        raise RigError(f"missing here: {', '.join(missing)}; make cluster-tools installs them on Debian and Ubuntu")


class Rig:
    """One cluster that was brought up."""

    def __init__(self, plan: Layout, programs: binaries.Binaries) -> None:
        self.layout = plan
        self.binaries = programs
        self.control = Control(plan, programs)

    def runner(self, name: str) -> NodeRunner:
        return NodeRunner(self.layout, self.layout.node(name), self.binaries)

    def runners(self) -> list[NodeRunner]:
        return [self.runner(one.name) for one in self.layout.nodes]

    @property
    def kubectl(self) -> Path:
        """A link in its own folder, which a user may put on the PATH."""
        return self.layout.folder / KUBECTL

    def load(self, archives: Sequence[Path]) -> None:
        """Imports images into every node; the nodes at the same time."""
        with ThreadPoolExecutor(max_workers=max(1, self.layout.count)) as pool:
            jobs = [pool.submit(self._load, one, archives) for one in self.runners()]
            for job in jobs:
                job.result()

    def _load(self, runner: NodeRunner, archives: Sequence[Path]) -> None:
        for archive in archives:
            runner.load(archive)

    def start_apiserver(self) -> None:
        if processes.find(self.layout.folder, "kube-apiserver"):
            raise RigError("the API server runs already")
        self.control.start_apiserver()
        self.control.wait_for_apiserver()

    def stop_apiserver(self) -> None:
        if not processes.end(self.layout.folder, "kube-apiserver"):
            raise RigError("the API server does not run")

    def restart_controllers(self) -> None:
        """kill -9 of controller-manager and schedulers, and new ones."""
        for role in (*CONTROLLERS, SECOND_SCHEDULER):
            processes.end(self.layout.folder, role)
        self.control.start_controllers()

    def status(self) -> str:
        """What runs, one line each."""
        roles: dict[str, list[int]] = {}
        for one in processes.find(self.layout.folder):
            roles.setdefault(one.role, []).append(one.pid)
        lines = [f"cluster {self.layout.name}: {self.layout.count} nodes, {self.layout.api_url}, {self.layout.folder}"]
        lines += [f"  {role}: {', '.join(map(str, sorted(pids)))}" for role, pids in sorted(roles.items())]
        return "\n".join(lines)


def open_rig(folder: Path) -> Rig:
    """The cluster in this folder."""
    plan = layout.read(folder)
    if plan is None:
        raise RigError(f"no cluster in {folder}")
    return Rig(plan, _programs(plan))


def _programs(plan: Layout) -> binaries.Binaries:
    """Those that it was brought up with, whichever Kubernetes is chosen by now."""
    link = plan.folder / KUBECTL
    if link.exists():
        return binaries.Binaries(link.readlink().parent)
    return binaries.need()


def up(
    name: str,
    folder: Path,
    count: int,
    images: Sequence[Path],
    progress: Progress,
    *,
    node_status: str = NODE_STATUS,
) -> Rig:
    """A new cluster, usable: nodes Ready and without taints, the default service account there, images imported."""
    preflight(count)
    programs = binaries.need()
    with layout.lock(str(folder)):
        if folder.exists():
            what = f"cluster {name} is up already" if layout.read(folder) else "something else is there"
            raise RigError(f"{what} ({folder}); take it down with: {down_command(name)}")
        try:
            rig = Rig(layout.make(name, folder, count), programs)
            _up(rig, images, progress, node_status)
        except BaseException as error:
            logs = folder.with_name(f"{folder.name}.failed-log")
            shutil.rmtree(logs, ignore_errors=True)
            if (folder / "log").exists():
                shutil.copytree(folder / "log", logs)
            _down(folder)
            if isinstance(error, RigError):
                raise RigError(f"{error} [logs kept in {logs}]") from error
            raise
        return rig


def down_command(name: str) -> str:
    return "make cluster-down" if name == "default" else f"tests/cluster/cluster down --name {name}"


def _up(rig: Rig, images: Sequence[Path], progress: Progress, node_status: str) -> None:
    plan = rig.layout
    rig.kubectl.parent.mkdir()
    rig.kubectl.symlink_to(rig.binaries["kubectl"])
    rig.control.identities()
    rig.control.start_etcd()
    rig.control.start_apiserver()
    if plan.count:
        planted = seed(images, rig.binaries, progress)
        for runner in rig.runners():
            runner.create(planted, node_status)
    progress.say("processes started")
    rig.control.wait_for_apiserver()
    progress.say("the API server is ready")
    if plan.count:
        rig.control.start_controllers()
        for runner in rig.runners():
            runner.wait_for_containerd()
            runner.start_kubelet()
        hint = f"see {plan.logs}"
        api = rig.control.api()
        wait_for("all nodes are Ready", lambda: usable(api, plan.count), seconds=USABLE_SECONDS, hint=hint)
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_for("the default service account is there", lambda: api.get(path), seconds=USABLE_SECONDS, hint=hint)
        progress.say(f"{plan.count} nodes are Ready")


def pause() -> Path:
    """The archive of the image that holds a pod's namespaces; the same file each time."""
    archive = binaries.cache() / "pause.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        new = archive.with_suffix(f".{os.getpid()}")
        oci.busybox_image(new, PAUSE, ["/bin/busybox", "sleep", "2147483647"])
        new.rename(archive)
    return archive


def seed(images: Sequence[Path], programs: binaries.Binaries, progress: Progress) -> Path:
    """What every node begins with: these images, and the one that it needs itself."""
    return seeds.seed([pause(), *images], programs, progress)


def usable(api: Api, count: int) -> bool:
    """Whether all the nodes are Ready and take pods."""
    nodes = api.items("/api/v1/nodes")
    return len(nodes) == count and all(
        not one["spec"].get("taints")
        and any(state["type"] == "Ready" and state["status"] == "True" for state in one["status"].get("conditions", []))
        for one in nodes
    )


def down(folder: Path, *, owners: Collection[str] = ()) -> list[str]:
    """Removes every trace of a cluster; what was removed, for a person. Nothing is no error.

    `owners`: only if the cluster still belongs to one of these runs.
    """
    with layout.lock(str(folder)):
        if owners and layout.owner(folder) not in owners:
            return []
        done = _down(folder)
        shutil.rmtree(folder.with_name(f"{folder.name}.failed-log"), ignore_errors=True)
    layout.forget_root()
    return done


def _down(folder: Path) -> list[str]:
    done = []
    ended = processes.end(folder)
    if ended:
        done.append(f"{len(ended)} processes")
    if not os.geteuid() and shutil.which("ip"):
        done += _down_kernel(folder)
    if folder.exists():
        shutil.rmtree(folder)
        done.append(str(folder))
    return done


def _down_kernel(folder: Path) -> list[str]:
    """Links, routes (they go with the links) and control groups."""
    plan = layout.read(folder)
    links = layout.bridges()
    # A bridge without an alias is one whose `up` was killed between two commands.
    ours = [bridge for bridge, owner in links if owner == folder]
    if plan is not None and plan.count and (plan.bridge, None) in links:
        ours.append(plan.bridge)
    done = []
    for bridge in ours:
        groups = cgroups.remove(f"{bridge}-")
        if groups:
            done.append(f"control groups {', '.join(groups)}")
        for link in layout.links(bridge):
            layout.ip("link", "delete", link)
        done.append(f"bridge {bridge}")
    return done
