"""The control plane: etcd, kube-apiserver and, where there are nodes, controller-manager and scheduler.

Everything is what Kubernetes does by default, but: etcd does not fsync (its data ends with the cluster), nobody elects
a leader, and the two clients may call as often as they like. All of it listens on loopback or on the cluster's bridge.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cluster.rig import processes
from cluster.rig.api import Api
from cluster.rig.binaries import Binaries
from cluster.rig.layout import Layout
from cluster.rig.pki import Authority
from cluster.rig.problem import wait_for

AUDITED_NAMESPACE = "nodedevices-system"  # the service accounts of this one are in the audit log
READY_SECONDS = 240  # a cold page cache on two cores takes a tenth of it
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
SECOND_SCHEDULER = "second-scheduler"
Child = subprocess.Popen[bytes]


class Control:
    """`mortal`: its processes end with this one, however that ends. `gates`: feature gates of the API server."""

    def __init__(self, layout: Layout, binaries: Binaries, *, mortal: bool = False, gates: str = "") -> None:
        self._layout = layout
        self._binaries = binaries
        self._mortal = mortal
        self._gates = gates
        self._authority = Authority(layout.pki)
        self._second: tuple[str, ...] = ()  # flags of the second scheduler, while there is to be one
        self.children: dict[str, Child] = {}

    def identities(self) -> None:
        """Keys, certificates and kubeconfigs of all parts."""
        layout, authority = self._layout, self._authority
        authority.create()
        names = f"IP:{layout.api_address},DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
        authority.issue("apiserver", "/CN=kube-apiserver", names)
        authority.issue("admin", "/O=system:masters/CN=admin")
        authority.kubeconfig(layout.kubeconfig, "admin", layout.api_url)
        if layout.count:
            authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
            for role in CONTROLLERS:
                authority.issue(role, f"/CN=system:{role}")
                authority.kubeconfig(layout.pki / f"{role}.kubeconfig", role, layout.api_url)
            for node in layout.nodes:
                subject = f"/O=system:nodes/CN=system:node:{node.name}"
                authority.issue(node.name, subject, f"IP:{node.address},DNS:{node.name}")
                authority.kubeconfig(layout.pki / f"{node.name}.kubeconfig", node.name, layout.api_url)

    def start_etcd(self) -> None:
        layout = self._layout
        clients, peers = (f"http://127.0.0.1:{port}" for port in (layout.etcd_port, layout.etcd_peer_port))
        self._start(
            "etcd",
            *("--data-dir", str(layout.folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )

    def start_apiserver(self) -> None:
        layout, pki = self._layout, self._layout.pki
        flags = [
            f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
            f"--bind-address={layout.api_address}",
            f"--secure-port={layout.api_port}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={layout.services}",
            f"--audit-policy-file={self._audit_policy()}",
            f"--audit-log-path={layout.audit_log}",
            "--allow-privileged=true",
            *([f"--feature-gates={self._gates}"] if self._gates else []),
        ]
        if layout.count:
            flags += [
                f"--advertise-address={layout.gateway}",
                f"--kubelet-client-certificate={pki}/kubelet-client.crt",
                f"--kubelet-client-key={pki}/kubelet-client.key",
                f"--kubelet-certificate-authority={pki}/ca.crt",
                "--kubelet-preferred-address-types=InternalIP",
            ]
        else:
            # No pod will ever follow the service `kubernetes`, and an endpoint may not be on loopback. Without a
            # controller-manager nobody makes service accounts: pods and tokens need them to be created by hand.
            flags += ["--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"]
        self._start("kube-apiserver", *flags)

    def _audit_policy(self) -> Path:
        """Who requested what, and what became of it, of the parts of the system that is installed here."""
        path = self._layout.folder / "audit-policy.json"
        rules: list[dict[str, object]] = [
            {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{AUDITED_NAMESPACE}"]},
            {"level": "None"},
        ]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        path.write_text(json.dumps(policy))
        return path

    def wait_for_apiserver(self, seconds: float = READY_SECONDS) -> None:
        wait_for("the API server is ready", self.api().ready, seconds=seconds, hint=f"see {self._layout.logs}")

    def start_controllers(self) -> None:
        pki = self._layout.pki
        common = ("--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=500")
        self._start(
            "kube-controller-manager",
            *common,
            f"--kubeconfig={pki}/kube-controller-manager.kubeconfig",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials",
            "--node-monitor-period=1s",  # how soon a Ready node loses its taints; when a node counts as lost is default
        )
        self._start("kube-scheduler", *common, f"--kubeconfig={pki}/kube-scheduler.kubeconfig")
        if self._second:
            self._start("kube-scheduler", *self._second, role=SECOND_SCHEDULER)

    def start_second_scheduler(self, *flags: str) -> None:
        """Beside the first; how it authenticates and for which pods it is, its configuration says. It is elected, so it
        ends when the API server is away: `start_controllers` starts it again."""
        self._second = ("--secure-port=0", *flags)
        self._start("kube-scheduler", *self._second, role=SECOND_SCHEDULER)

    def stop(self, role: str) -> None:
        """At once: a graceful end of the API server waits up to a minute for its watchers."""
        processes.end(self._layout.folder, role)
        self._second = () if role == SECOND_SCHEDULER else self._second
        child = self.children.pop(role, None)
        if child is not None:
            child.wait()

    def api(self) -> Api:
        return Api(self._layout.api_url, self._layout.pki)

    def _start(self, program: str, *flags: str, role: str = "") -> None:
        """`role`: what it is known by, where that is not the program's name."""
        role = role or program
        child = processes.start(self._layout.folder, role, [self._binaries[program], *flags], mortal=self._mortal)
        if child is not None:
            self.children[role] = child
