"""A real Prometheus on this machine that scrapes a cluster of our rig, found and labelled as users' are.

It has two jobs: `services` is the configuration that the component metrics-services ships, `pods` what the Prometheus
Operator makes of our PodMonitors. Both scrape every second. Of the alerts' durations only the seconds that are given
here are left: what they are is tested with promtool (tests/alerts), which has a clock of its own.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.prometheus import COMPONENT, RULES, program

SERVICES = COMPONENT.parent / "metrics-services"
ANSWER_SECONDS = 5
STOP_SECONDS = 10


@dataclass(frozen=True)
class Server:
    url: str

    def ask(self, path: str, **query: str) -> Any:
        """`data` of an answer. ConnectionError while there is none."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=ANSWER_SECONDS
            ) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    def up(self) -> dict[tuple[str, str], str]:
        """Job and pod of every target -> its health."""
        found = self.ask("targets")["activeTargets"]
        return {(one["labels"]["job"], one["labels"]["pod"]): one["health"] for one in found}

    def series(self, query: str) -> list[dict[str, str]]:
        """The labels of what a query gives now."""
        return [one["metric"] for one in self.ask("query", query=query)["result"]]

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts that are pending or firing, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self.ask("alerts")["alerts"]:
            found.setdefault(one["labels"]["alertname"], []).append(one)
        return found

    def firing(self) -> set[str]:
        return {name for name, ones in self.alerts().items() if any(one["state"] == "firing" for one in ones)}


@contextmanager
def running(kubeconfig: Path, folder: Path, *, hold: str) -> Iterator[Server]:
    """One that runs until the block ends. `hold`: how long a condition has to last until its alert fires, and how long
    it fires on."""
    found = program("prometheus")
    assert found is not None
    rules = re.sub(r"for: \d+m\b", f"for: {hold}", RULES.read_text())
    (folder / "rules.yaml").write_text(rules)
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [service_job(kubeconfig), *pod_jobs(kubeconfig)],
    }
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
        yield Server(f"http://{address}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def service_job(kubeconfig: Path) -> dict[str, Any]:
    """The one that we ship, from outside the cluster and faster."""
    [job] = yaml.safe_load((SERVICES / "scrape.yaml").read_text())["scrape_configs"]
    [discovery] = job["kubernetes_sd_configs"]
    outside = {**discovery, "kubeconfig_file": str(kubeconfig)}
    return {**job, "job_name": "services", "scrape_interval": "1s", "kubernetes_sd_configs": [outside]}


def pod_jobs(kubeconfig: Path) -> Iterator[dict[str, Any]]:
    """As the Prometheus Operator writes them (pkg/prometheus/promcfg.go, generatePodMonitorConfig)."""
    for monitor in yaml.safe_load_all((COMPONENT / "podmonitors.yaml").read_text()):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        labels = monitor["spec"]["selector"]["matchLabels"]
        meta = "__meta_kubernetes_pod"
        yield {
            "job_name": monitor["metadata"]["name"],
            "honor_labels": endpoint["honorLabels"],
            "kubernetes_sd_configs": [
                {
                    "role": "pod",
                    "namespaces": {"names": [monitor["metadata"]["namespace"]]},
                    "kubeconfig_file": str(kubeconfig),
                }
            ],
            "relabel_configs": [
                *(
                    {
                        "action": "keep",
                        "source_labels": [f"{meta}_label_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}"],
                        "regex": value,
                    }
                    for key, value in labels.items()
                ),
                {"action": "keep", "source_labels": [f"{meta}_container_port_name"], "regex": endpoint["port"]},
                {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                {"source_labels": [f"{meta}_container_name"], "target_label": "container"},
                {"source_labels": [f"{meta}_name"], "target_label": "pod"},
                {"target_label": "job", "replacement": "pods"},
                *(
                    {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]}
                    for each in endpoint.get("relabelings", ())
                ),
            ],
        }
