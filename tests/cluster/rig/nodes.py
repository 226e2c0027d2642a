"""One node: namespaces, a cable to the bridge, containerd, and a kubelet.

A node is a network, a mount and a pid namespace; its paths are the default ones (the kubelet's device-plugin directory
is fixed) and are private to it. Its first process ends with everything in it; kubelet and containerd are found by role.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from cluster.rig import cgroups, processes, seeds
from cluster.rig.binaries import Binaries
from cluster.rig.layout import Layout, Node, ip
from cluster.rig.problem import RigError, wait_for

PID1 = Path(__file__).with_name("pid1.py")
PAUSE = "localhost/nodedevices-pause:dev"
START_SECONDS = 120

CONTAINERD = """\
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni}"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def network(node: Node) -> str:
    """The CNI configuration: pods of a node on a bridge of the node's own."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet(layout: Layout, node: Node, node_status: str) -> str:
    """The kubelet's configuration. Every period is its default, but for how often it writes its Node."""
    pki = layout.pki
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/{node.name}.crt",
            "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            # /etc/resolv.conf often points into /run, which is the node's own.
            "resolvConf": str(node.folder / "resolv.conf"),
            # The disk is the machine's: how full it is must neither evict pods nor remove imported images.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": node_status,
        },
        indent=2,
    )


class NodeRunner:
    def __init__(self, layout: Layout, node: Node, binaries: Binaries) -> None:
        self._layout = layout
        self._node = node
        self._binaries = binaries

    def create(self, seed: Path, node_status: str) -> None:
        """Namespaces, group and cable; containerd is starting, with the images of the seed."""
        node, folder = self._node, self._node.folder
        folder.mkdir()
        seeds.plant(seed, folder / "containerd")
        (folder / "resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
        (folder / "containerd.toml").write_text(CONTAINERD.format(pause=PAUSE, cni=self._binaries.cni))
        (folder / "kubelet.json").write_text(kubelet(self._layout, node, node_status))
        self._boot()

    def reboot(self) -> None:
        """As without power: everything in the node ends, and what it had in memory is gone. It comes back with its disk
        and another boot id; its kubelet is starting."""
        node, folder = self._node, self._node.folder
        for program in ("pid1", "kubelet", "containerd"):
            processes.end(self._layout.folder, f"{node.name}-{program}")
        cgroups.remove(node.cgroup)
        gone = f"the cable of {node.name} is gone"
        wait_for(gone, lambda: not Path("/sys/class/net", node.link).exists(), seconds=START_SECONDS, hint="")
        (folder / "ready").unlink()
        (folder / "scratch").rmdir()
        self._boot()
        boot_id = folder / "boot-id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        self.run("mount", "--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
        self.wait_for_containerd()
        self.start_kubelet()

    def _boot(self) -> None:
        node, folder = self._node, self._node.folder
        cgroups.make(node.cgroup)
        processes.start(
            self._layout.folder,
            f"{node.name}-pid1",
            [
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
                *(sys.executable, "-I", "-S", str(PID1), str(folder)),
            ],
        )
        hint = f"see {self._layout.logs / node.name}-pid1"
        wait_for(f"node {node.name} has its folders", (folder / "ready").exists, seconds=START_SECONDS, hint=hint)
        self._connect()
        self.run("sh", "-c", 'cat > "$0"', "/etc/cni/net.d/10-pods.conflist", stdin=network(node))
        path = f"{self._binaries.folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._start("containerd", "--config", str(folder / "containerd.toml"), environment={"PATH": path})

    def _connect(self) -> None:
        node, layout = self._node, self._layout
        pid = str(self.pid())
        ip("link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        ip("link", "set", node.link, "master", layout.bridge, "up")
        inside = [
            "link set lo up",
            f"address add {node.address}/24 dev eth0",
            "link set eth0 up",
            f"route add {layout.services} via {layout.gateway}",
            *(f"route add {one.pods} via {one.address}" for one in layout.nodes if one != node),
        ]
        self.run("ip", "-batch", "-", stdin="\n".join(inside) + "\n")
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")  # of the node's namespace, not of the machine
        ip("route", "replace", node.pods, "via", node.address)

    def pid(self) -> int:
        """The node's first process, as the machine counts."""
        for one in processes.find(self._layout.folder, f"{self._node.name}-pid1"):
            try:
                status = Path(f"/proc/{one.pid}/status").read_text()
            except OSError:
                continue
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
            if len(numbers) > 1 and numbers[-1] == "1":
                return int(numbers[0])
        raise RigError(f"node {self._node.name} does not run")

    def argv(self) -> list[str]:
        """What to put before a command so that it runs in the node."""
        return ["nsenter", "--target", str(self.pid()), "--net", "--mount", "--pid"]

    def run(self, *command: str, stdin: str | None = None) -> str:
        """Output of a command in the node."""
        done = subprocess.run([*self.argv(), *command], input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise RigError(f"{self._node.name}: {' '.join(command)}: exit {done.returncode}: {said[-500:]}")
        return done.stdout

    def wait_for_containerd(self) -> None:
        wait_for(
            f"containerd of {self._node.name} answers",
            lambda: self._ctr("version").returncode == 0,
            seconds=START_SECONDS,
            hint=f"see {self._layout.logs / self._node.name}-containerd",
        )

    def load(self, archive: Path) -> None:
        """Imports every image of an OCI archive."""
        done = self._ctr("--namespace", "k8s.io", "images", "import", "--local", str(archive))
        if done.returncode:
            raise RigError(f"{self._node.name}: {archive} cannot be imported: {done.stderr.strip()[-500:]}")

    def _ctr(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [*self.argv(), self._binaries["ctr"], *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def start_kubelet(self) -> None:
        node, layout = self._node, self._layout
        self._start(
            "kubelet",
            *("--config", str(node.folder / "kubelet.json")),
            *("--kubeconfig", str(layout.pki / f"{node.name}.kubeconfig")),
            *("--hostname-override", node.name, "--node-ip", node.address),
        )

    def stop_kubelet(self) -> None:
        """As systemd would: SIGTERM. Pods keep running."""
        if not processes.end(self._layout.folder, f"{self._node.name}-kubelet", how=signal.SIGTERM):
            raise RigError(f"the kubelet of {self._node.name} does not run")

    def _start(self, program: str, *args: str, environment: dict[str, str] | None = None) -> None:
        role = f"{self._node.name}-{program}"
        if processes.find(self._layout.folder, role):
            raise RigError(f"the {program} of {self._node.name} runs already")
        command = [*self.argv(), self._binaries[program], *args]
        processes.start(self._layout.folder, role, command, environment=environment)
