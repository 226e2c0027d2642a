"""Where everything of one cluster is: folders, addresses, names in the kernel. All of it follows from two numbers.

Whatever is shared by the whole machine (links, addresses, cgroups) carries the cluster's index, so that clusters stand
side by side. The index is chosen under a lock, and the bridge of that index carries the cluster's folder as its alias:
even when the folder was deleted, `down` finds what belongs to it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import random
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.rig import processes
from cluster.rig.problem import RigError, wait_for

MOST_CLUSTERS = 16
MOST_NODES = 15
ALIAS = "nodedevices:"
OWNER = "owner"  # a file in the cluster's folder: the run that the cluster belongs to
# Linux hands out 32768 and above to clients: a client that tries a stopped server's port there can connect to itself.
PORTS = (20000, 31999)
# A node hides these folders of the machine behind its own.
PRIVATE = ("/run", "/var/run", "/var/lib", "/var/log", "/etc", "/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Node:
    name: str
    folder: Path
    address: str
    pods: str  # the node's pods, as a CIDR
    link: str  # the bridge's end of its cable
    cgroup: str


@dataclass(frozen=True)
class Layout:
    """`count` nodes; 0 is an API server alone, on loopback, which needs no root and has no index."""

    name: str
    folder: Path
    index: int
    count: int
    api_port: int
    etcd_port: int
    etcd_peer_port: int

    @property
    def bridge(self) -> str:
        return f"nd{self.index}"

    @property
    def gateway(self) -> str:
        return f"10.200.{self.index}.1"

    @property
    def services(self) -> str:
        return f"10.96.{self.index}.0/24"

    @property
    def api_address(self) -> str:
        """Pods reach the API server as the service `kubernetes`: its address is simply one of the bridge's."""
        return f"10.96.{self.index}.1" if self.count else "127.0.0.1"

    @property
    def api_url(self) -> str:
        return f"https://{self.api_address}:{self.api_port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def audit_log(self) -> Path:
        """The API server's, a line of JSON each."""
        return self.logs / "audit.json"

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._node(number) for number in range(1, self.count + 1))

    def _node(self, number: int) -> Node:
        name = f"n{number}"
        return Node(
            name=name,
            folder=self.folder / name,
            address=f"10.200.{self.index}.{10 + number}",
            pods=f"10.244.{self.index * 16 + number}.0/24",
            link=f"{self.bridge}-{name}",
            cgroup=f"{self.bridge}-{name}",
        )

    def node(self, name: str) -> Node:
        for one in self.nodes:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in self.nodes) or "none"
        raise RigError(f"cluster {self.name} has no node {name!r}; its nodes: {names}")

    def write(self) -> None:
        text = json.dumps({**asdict(self), "folder": str(self.folder)}, indent=2)
        (self.folder / "cluster.json").write_text(text + "\n")


def state_root() -> Path:
    """Folders of clusters lie here: on a disk (images), not in /tmp, which may be memory."""
    chosen = os.environ.get("NODEDEVICES_STATE")
    return Path(chosen) if chosen else Path(f"/var/tmp/nodedevices-{os.geteuid()}")


def default_folder(name: str) -> Path:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,29}", name):
        raise RigError(f"--name {name!r}: at most 30 lower-case letters, digits and dashes")
    return state_root() / name


def folders() -> list[Path]:
    """Of every cluster, and what else is there."""
    with suppress(FileNotFoundError):
        return sorted(folder for folder in state_root().absolute().iterdir() if folder.is_dir())
    return []


def owner(folder: Path) -> str:
    """The run that a cluster belongs to; empty: none, so a person's."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return (folder / OWNER).read_text()
    return ""


def forget_root() -> None:
    """Removes the folder of clusters' folders when nothing is in it."""
    with suppress(OSError):
        state_root().rmdir()


def usable(folder: Path) -> Path:
    """The folder as an absolute path that a node can see."""
    absolute = folder.absolute()
    for hidden in PRIVATE:
        if absolute.is_relative_to(hidden):
            raise RigError(f"{absolute}: nodes have a {hidden} of their own; choose another place with --state")
    return absolute


def read(folder: Path) -> Layout | None:
    """The layout of a cluster that was begun; None when there is none, or only half a file."""
    try:
        known = json.loads((folder / "cluster.json").read_text())
        return Layout(**{**known, "folder": Path(known["folder"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def check_nodes(count: int) -> None:
    """Raises RigError."""
    if not 0 <= count <= MOST_NODES:
        raise RigError(f"--nodes {count}: 0 to {MOST_NODES}")


def make(name: str, folder: Path, count: int) -> Layout:
    """A new layout, written to its folder, with its bridge when it has nodes."""
    check_nodes(count)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # keys
    if run := os.environ.get(processes.RUN):
        (folder / OWNER).write_text(run)
    ports = free_ports(3)
    if not count:
        layout = Layout(name, folder, 0, 0, *ports)
        layout.write()
        return layout
    with lock("the choice of addresses", seconds=120):
        layout = Layout(name, folder, free_index(), count, 443, *ports[:2])
        layout.write()
        ip("link", "add", layout.bridge, "type", "bridge")
        ip("link", "set", layout.bridge, "alias", f"{ALIAS}{folder}", "up")
    ip("address", "add", f"{layout.gateway}/24", "dev", layout.bridge)
    ip("address", "add", f"{layout.api_address}/32", "dev", layout.bridge)
    return layout


def free_index() -> int:
    """An index whose link is not there and whose networks nobody on this machine uses."""
    links = {link for link, _ in bridges()}
    routes = [
        ipaddress.ip_network(one["dst"], strict=False)
        for one in json.loads(ip("-json", "-4", "route", "show", "table", "all"))
        if one["dst"] != "default" and one.get("type", "unicast") == "unicast"
    ]
    for index in range(MOST_CLUSTERS):
        ours = [f"10.96.{index}.0/24", f"10.200.{index}.0/24", f"10.244.{index * 16}.0/20"]
        networks = [ipaddress.ip_network(one) for one in ours]
        if f"nd{index}" not in links and not any(one.overlaps(route) for one in networks for route in routes):
            return index
    raise RigError("no free network for a cluster: 10.96.x, 10.200.x and 10.244.x are in use (see `ip route`)")


def bridges() -> list[tuple[str, Path | None]]:
    """Links of this machine that are named like a cluster's bridge, with the folder that each belongs to."""
    found = []
    for one in json.loads(ip("-json", "link", "show")):
        if re.fullmatch(r"nd\d+", one["ifname"]):
            alias = one.get("ifalias", "")
            found.append((one["ifname"], Path(alias.removeprefix(ALIAS)) if alias.startswith(ALIAS) else None))
    return found


def links(bridge: str) -> list[str]:
    """Cables of a bridge that are still there (a node's namespace takes its own with it), and the bridge itself."""
    names = [one["ifname"] for one in json.loads(ip("-json", "link", "show"))]
    return [*(name for name in names if name.startswith(f"{bridge}-")), bridge]


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has, kept for this process until it ends.

    A socket stays bound to each, so that nobody else is given it before a server of ours listens there, or while that
    one starts again. With SO_REUSEADDR on both, as in each program in Go, it does not hold the server up: socket(7).
    """
    found: list[int] = []
    for port in random.sample(range(*PORTS), 500):
        reserved = socket.socket()
        try:
            reserved.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind, which would share else
        reserved.detach()  # nothing closes it
        found.append(port)
        if len(found) == count:
            return found
    raise RigError(f"no {count} free ports between {PORTS[0]} and {PORTS[1]} on 127.0.0.1")


def ip(*args: str) -> str:
    """Output of iproute2's ip."""
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RigError(f"ip {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def lock(what: str, *, seconds: float = 0) -> Iterator[None]:
    """Only one process of this machine at a time is inside; RigError when it is not our turn in time.

    The lock is a name among the kernel's abstract sockets: it ends with its holder and leaves no file behind.
    """
    name = f"\0nodedevices-rig-{hashlib.sha256(what.encode()).hexdigest()}"
    with socket.socket(socket.AF_UNIX) as holder:

        def take() -> bool:
            try:
                holder.bind(name)
            except OSError:
                return False
            return True

        wait_for(f"{what} is in the hands of another up or down", take, seconds=seconds)
        yield
