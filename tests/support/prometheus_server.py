"""A real Prometheus on this machine that scrapes a cluster of our rig, or processes, found and labelled as users' are.

It has two jobs: `services` is the scrape.yaml of the component prometheus, `pods` what the Prometheus Operator makes of
our PodMonitors. Both scrape every second. Of the alerts' durations only the seconds that are given here are left: what
they are is tested with promtool (tests/alerts), which has its own clock.

Debian builds Prometheus without its Kubernetes discovery. So `discover` writes what it would have found, in its own
words (`__meta_kubernetes_...`), where Prometheus reads targets from files: of a cluster (`in_cluster`), or of processes
that stand for pods (`of_processes`). Which of them are scraped, and with which labels, is decided by the relabelling
that users have.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.ending import end
from support.kubectl import Kubectl
from support.patience import CLUSTER_PATIENCE_SECONDS
from support.prometheus import COMPONENT, RULES, program

SYSTEM = "nodedevices-system"
META = "__meta_kubernetes"
Target = Mapping[str, Any]
Discovery = Callable[[], Mapping[str, Iterable[Target]]]  # what each job finds


@dataclass(frozen=True)
class Process:
    """A program that stands for a pod; `component`: agent or operator."""

    pod: str
    component: str
    node: str
    port: int


@dataclass(frozen=True)
class Server:
    url: str
    discovery: Discovery
    folder: Path

    def discover(self) -> None:
        """Prometheus scrapes what there is now."""
        for name, found in self.discovery().items():
            new = self.folder / f"{name}.new"
            new.write_text(json.dumps(list(found)))
            new.rename(targets(self.folder, name))

    def get(self, path: str, **query: str) -> Any:
        """`data` of an answer. ConnectionError while there is none, with the reason where Prometheus has one."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=CLUSTER_PATIENCE_SECONDS
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ConnectionError(error.read().decode()) from error
        except (urllib.error.URLError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    def up(self) -> dict[tuple[str, str], str]:
        """Job and pod of every target -> its health."""
        found = self.get("targets")["activeTargets"]
        return {(one["labels"]["job"], one["labels"]["pod"]): one["health"] for one in found}

    def series(self, query: str) -> list[dict[str, str]]:
        """The labels of what a query gives now."""
        return [one["metric"] for one in self.get("query", query=query)["result"]]

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts that are pending or firing, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self.get("alerts")["alerts"]:
            found.setdefault(one["labels"]["alertname"], []).append(one)
        return found

    def firing(self) -> set[str]:
        return {name for name, ones in self.alerts().items() if any(one["state"] == "firing" for one in ones)}


@contextmanager
def running(
    discovery: Discovery, folder: Path, *, hold: str, labels: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Server]:
    """One that runs until the block ends. `hold`: how long a condition has to last until its alert fires, and how long
    it fires on. `labels`: more labels of all that a job scrapes."""
    found = program("prometheus")
    assert found is not None
    rules = re.sub(r"for: \d+m\b", f"for: {hold}", RULES.read_text())
    (folder / "rules.yaml").write_text(rules)
    document: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [service_job(folder), *pod_jobs(folder)],
    }
    for job in document["scrape_configs"]:
        name = "services" if job["job_name"] == "services" else "pods"
        more = (labels or {}).get(name, {})
        job["relabel_configs"] += [{"target_label": key, "replacement": value} for key, value in more.items()]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                found,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        server = Server(f"http://{address}", discovery, folder)
        server.discover()
        yield server
    finally:
        end(process, seconds=CLUSTER_PATIENCE_SECONDS)


def targets(folder: Path, name: str) -> Path:
    """The file that Prometheus reads targets from."""
    return folder / f"{name}.json"


def service_job(folder: Path) -> dict[str, Any]:
    """The one that we ship, but for the discovery, and faster."""
    [job] = yaml.safe_load((COMPONENT / "scrape.yaml").read_text())["scrape_configs"]
    [discovery] = job.pop("kubernetes_sd_configs")
    assert discovery["role"] == "endpointslice"
    assert SYSTEM in discovery["namespaces"]["names"]
    found = [{"files": [str(targets(folder, "services"))]}]
    return {**job, "job_name": "services", "scrape_interval": "1s", "file_sd_configs": found}


def in_cluster(kubectl: Kubectl) -> Discovery:
    return lambda: {"services": endpoints(kubectl), "pods": pods(kubectl)}


def of_processes(processes: Iterable[Process]) -> Discovery:
    """As both roles would find pods in the place of which these processes run."""
    found = tuple(processes)

    def target(process: Process, role: str, port_name: str) -> Target:
        labels = {"app.kubernetes.io/name": "nodedevices", "app.kubernetes.io/component": process.component}
        return {
            "targets": [f"127.0.0.1:{process.port}"],
            "labels": {
                f"{META}_namespace": SYSTEM,
                f"{META}_pod_name": process.pod,
                f"{META}_pod_node_name": process.node,
                f"{META}_pod_container_name": process.component,
                f"{META}_{port_name}": "http",
                **labels_as(f"{META}_{role}_label", labels),
            },
        }

    return lambda: {
        "services": [target(each, "service", "endpointslice_port_name") for each in found],
        "pods": [target(each, "pod", "pod_container_port_name") for each in found],
    }


def endpoints(kubectl: Kubectl) -> Iterator[Target]:
    """As role `endpointslice` finds them."""
    services = {one["metadata"]["name"]: one["metadata"]["labels"] for one in listed(kubectl, "services")}
    for one in listed(kubectl, "endpointslices"):
        service = one["metadata"]["labels"]["kubernetes.io/service-name"]
        for endpoint in (one.get("endpoints") or ()) if service in services else ():
            for port in one.get("ports") or ():
                yield {
                    "targets": [f"{endpoint['addresses'][0]}:{port['port']}"],
                    "labels": {
                        f"{META}_namespace": SYSTEM,
                        f"{META}_endpointslice_port_name": port["name"],
                        f"{META}_pod_name": endpoint["targetRef"]["name"],
                        f"{META}_pod_node_name": endpoint["nodeName"],
                        **labels_as(f"{META}_service_label", services[service]),
                    },
                }


def pods(kubectl: Kubectl) -> Iterator[Target]:
    """As role `pod` finds them: every port of every container."""
    for pod in listed(kubectl, "pods"):
        for container in pod["spec"]["containers"] if pod["status"].get("podIP") else ():
            for port in container.get("ports", ()):
                yield {
                    "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
                    "labels": {
                        f"{META}_namespace": SYSTEM,
                        f"{META}_pod_name": pod["metadata"]["name"],
                        f"{META}_pod_node_name": pod["spec"]["nodeName"],
                        f"{META}_pod_container_name": container["name"],
                        f"{META}_pod_container_port_name": port["name"],
                        **labels_as(f"{META}_pod_label", pod["metadata"]["labels"]),
                    },
                }


def listed(kubectl: Kubectl, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.items(kind, SYSTEM)
    return found


def labels_as(prefix: str, labels: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}_{sanitized(key)}": value for key, value in labels.items()}


def sanitized(key: str) -> str:
    """A Kubernetes label's key in the name of a label of Prometheus."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def pod_jobs(folder: Path) -> Iterator[dict[str, Any]]:
    """As the Prometheus Operator writes them (pkg/prometheus/promcfg.go, generatePodMonitorConfig)."""
    for monitor in yaml.safe_load_all((COMPONENT / "podmonitors.yaml").read_text()):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        labels = monitor["spec"]["selector"]["matchLabels"]
        meta = f"{META}_pod"
        yield {
            "job_name": monitor["metadata"]["name"],
            "honor_labels": endpoint["honorLabels"],
            "file_sd_configs": [{"files": [str(targets(folder, "pods"))]}],
            "relabel_configs": [
                *(
                    {"action": "keep", "source_labels": [f"{meta}_label_{sanitized(key)}"], "regex": value}
                    for key, value in labels.items()
                ),
                {"action": "keep", "source_labels": [f"{meta}_container_port_name"], "regex": endpoint["port"]},
                {"source_labels": [f"{META}_namespace"], "target_label": "namespace"},
                {"source_labels": [f"{meta}_container_name"], "target_label": "container"},
                {"source_labels": [f"{meta}_name"], "target_label": "pod"},
                {"target_label": "job", "replacement": "pods"},
                *(
                    {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]}
                    for each in endpoint.get("relabelings", ())
                ),
            ],
        }
