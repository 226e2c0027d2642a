"""`make soak HOURS=1`: whether memory, open files, threads and queues of our parts are flat under load for hours.

    make soak HOURS=1 SEED=5

The load is accelerated: pods, policies and faults as in a chaos run, several a second, and bursts of events. Nothing is
killed, so that every sample of a series is one process's. Exit 0 when everything is flat; the table is printed.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from chaos import cluster, machines
from chaos.cluster import PARTS
from chaos.decide import decide
from chaos.driver import Journal, Run, Violated
from chaos.explained import Done
from chaos.model import Settle
from chaos.trend import Bound, leaks, table
from support.cluster import SYSTEM
from support.kubectl import KubectlError, NotReached

HOURS = 1.0
SEED = 5
SAMPLE_SECONDS = 10.0
STORM_SECONDS = 2.0
PORTS = {"agent": 9735, "operator": 9736}
QUEUES = ("nodedevices_operator_queue_depth", "nodedevices_internal_errors_total")
COUNTED = frozenset({"queued", "errors"})
BOUNDS = {
    "MiB": Bound(3, 0.05),
    "files": Bound(3),
    "threads": Bound(2, 0.2),  # a served resource has threads, and how many are served changes with the configurations
    "queued": Bound(3),
    "errors": Bound(0),
}


class Soak(Run):
    """A run whose actions are calm, with samples in between: `series` by name, also of a run that something ended."""

    series: dict[str, list[float]]

    def soak(self, hours: float) -> None:
        self.series = defaultdict(list)
        self.done.append(Done("Begin", self.journal.now))
        self.settle()
        began = time.monotonic()
        sampled = stormed = 0.0
        while time.monotonic() < began + hours * 3600:
            self.number += 1
            step = decide(self.seed, self.number, self.plan, calm=True)
            self.plan_and_do(step.action)
            if step.action == Settle():
                self.journal.say(f"{self.number:6d} steps")
            if time.monotonic() > stormed + STORM_SECONDS:
                stormed = time.monotonic()
                for node in machines.NODES:
                    self.hardware(node, storm=f"storm-{self.number}")
            if time.monotonic() > sampled + SAMPLE_SECONDS:
                sampled = time.monotonic()
                self.check()
                self.read_logs()
                for name, value in self.sample().items():
                    self.series[self.as_configured(name)].append(value)
            self._wait(step.pause_seconds)
        self.number += 1
        self.plan_and_do(Settle())

    def as_configured(self, name: str) -> str:
        """The series' name, with the configurations by which an agent and its probes have more processes or sockets:
        of these only what is alike is compared. What is to stay 0 is one series."""
        part, node, unit = name.split(" ")
        chosen = {} if part == "operator" or unit in COUNTED else self.plan.nodes[node].chosen
        return " ".join(
            (part, node, *(chosen[section] for section in ("discovery", "serving") if section in chosen), unit)
        )

    def sample(self) -> dict[str, float]:
        """What every process of ours has just now, by part and node."""
        found: dict[str, float] = defaultdict(float)
        for node in machines.NODES:
            processes = self.cluster.client(node).call("containers", prefixes=["NONE"])
            for part, words in PARTS.items():
                for one in processes:
                    if not any(words.fullmatch(each.rpartition("/")[2]) for each in one["words"]):
                        continue
                    found[f"{part} {node} MiB"] += one["kib"] / 1024
                    found[f"{part} {node} files"] += one["files"]
                    found[f"{part} {node} threads"] += one["threads"]
        for pod in self.cluster.kubectl.items("pods", SYSTEM):
            part = pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
            if part in PORTS:
                where = f"{part} {pod['spec']['nodeName']}"
                for name, value in metrics(pod["status"]["podIP"], PORTS[part]).items():
                    found[f"{where} {'queued' if 'queue' in name else 'errors'}"] += value
        return found


def metrics(address: str, port: int) -> dict[str, float]:
    """Sums of the series that should be flat."""
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = defaultdict(float)
    for line in lines:
        name = line.split("{")[0].split(" ")[0]
        if name in QUEUES:
            found[name] += float(line.rpartition(" ")[2])
    return found


def main() -> int:
    hours, seed = float(os.environ.get("HOURS") or HOURS), int(os.environ.get("SEED") or SEED)
    journal = Journal(Path("build", "chaos", f"soak-{seed}"))
    journal.say(f"{hours:g} h, seed {seed}; the log: {journal.folder}/steps.log")
    try:
        with cluster.running(os.environ.get("NAME") or "soak", keep=bool(os.environ.get("KEEP"))) as made:
            run = Soak(made, seed, journal)
            wrong: list[str] = []
            try:
                run.soak(hours)
            except Violated as error:
                wrong += error.wrong
                run.keep_what_is_there()
            print(table(run.series))
            journal.keep("table.md", table(run.series) + "\n")
            grown = leaks(run.series, BOUNDS)
            for each in (*wrong, *grown, *(f"unexplained: {one.part} {one.text[:300]}" for one in run.unexplained)):
                journal.say(f"WRONG: {each}")
            journal.say(f"{run.number} steps; {'not everything is flat' if grown else 'all is flat'}")
            return 1 if wrong or grown or run.unexplained else 0
    except (KubectlError, NotReached, OSError) as error:
        journal.say(f"{type(error).__name__}: {error}")
        raise
    finally:
        journal.close()


if __name__ == "__main__":
    sys.exit(main())
