"""A run: decide, do, look, judge, step by step. It decides nothing itself, and what it does is thin."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import claimed, invariants, machines, model
from chaos.cluster import DISKS, STATE, ChaosCluster
from chaos.decide import decide
from chaos.explained import Done, Line, unexplained
from chaos.invariants import History, policy_name
from chaos.logs import Logs
from chaos.seen import Seen
from support import audit
from support.cluster import NAMESPACE
from support.kubectl import KubectlError, wait_until
from support.second_scheduler import SCHEDULER

SETTLE_SECONDS = 150.0
QUIET_SECONDS = 15.0
QUIET_WITHIN_SECONDS = 45.0  # a change of the configuration is watched for 10 s
CONFIRM_AFTER_SECONDS = 4.0
LOOK_SECONDS = 1.0
SPEAK_SECONDS = 15.0  # while it waits
EVICTING_SECONDS = 30.0


class Violated(Exception):  # noqa: N818 - reads as what happened
    """What must hold did not, in words."""

    def __init__(self, wrong: Sequence[str]) -> None:
        super().__init__("\n".join(wrong))
        self.wrong = list(wrong)


@dataclass
class Journal:
    """The numbered steps, on the terminal and in a file."""

    folder: Path
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = (self.folder / "steps.log").open("a", buffering=1)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        line = f"{int(self.now) // 60:02d}:{self.now % 60:04.1f}  {text}"
        print(line, flush=True)
        self._file.write(line + "\n")

    def text(self) -> str:
        return (self.folder / "steps.log").read_text()

    def keep(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def close(self) -> None:
        self._file.close()


@dataclass
class Run:
    cluster: ChaosCluster
    seed: int
    journal: Journal
    plan: model.Plan = field(default_factory=model.Plan)
    history: History = field(default_factory=History)
    number: int = 0
    done: list[Done] = field(default_factory=list)
    unexplained: list[Line] = field(default_factory=list)
    _thaws: list[tuple[float, str, list[int]]] = field(default_factory=list)
    _restart_controllers: bool = False
    _evicting: dict[str, float] = field(default_factory=dict)  # node -> until when (of the journal)

    def __post_init__(self) -> None:
        rig = self.cluster.rig.rig.rig
        self._logs = Logs(
            {one.name: one.folder / "var-log" for one in rig.layout.nodes}, {"extender": self.cluster.extender.log}
        )

    # --- the run ------------------------------------------------------------------------------------------------------
    def go(self, *, seconds: float, steps: int | None = None) -> None:
        """Until the time is over, or so many steps were made; then everything must settle, and be quiet."""
        self.done.append(Done("Begin", self.journal.now))
        self.settle()
        until = time.monotonic() + seconds
        while (steps is None or self.number < steps) and time.monotonic() < until:
            self.step()
        self.number += 1
        self._say(model.Settle())
        self.plan_and_do(model.Settle())
        self.quiet()
        self.read_logs()
        if self.unexplained:
            lines = [f"unexplained: {one.part} {one.node}: {one.text[:600]}" for one in self.unexplained]
            raise Violated(lines)
        self.journal.say(f"all held: {self.number} steps, seed {self.seed}")

    def step(self) -> None:
        self.number += 1
        step = decide(self.seed, self.number, self.plan)
        self._say(step.action)
        self.plan_and_do(step.action)
        self._wait(step.pause_seconds)
        self.check()
        self.read_logs()

    def _say(self, action: model.Action) -> None:
        self.journal.say(f"{self.number:4d}  {action}")

    def plan_and_do(self, action: model.Action) -> None:
        self._note_evicting()
        before, self.plan = self.plan, model.after(self.plan, action)
        self.done.append(Done(type(action).__name__, self.journal.now))
        self.perform(action, before)
        self.done.append(Done(type(action).__name__, self.journal.now))

    # --- what is done -------------------------------------------------------------------------------------------------
    def perform(self, action: model.Action, before: model.Plan) -> None:
        cluster, rig, kubectl = self.cluster, self.cluster.rig, self.cluster.kubectl
        match action:
            case model.CreatePod():
                if action.claim:
                    kubectl.apply(claim(action.claim))
                kubectl.apply(self.pod(action))
            case model.DeletePod():
                kubectl.delete("pod", action.name, namespace=NAMESPACE, wait=False)
                for name in before.claims - model.after(before, action).claims:
                    kubectl.delete("resourceclaim", name, namespace=NAMESPACE, wait=False)
            case model.SetPolicy():
                self.policy(action)
            case model.Strike() | model.Cure() | model.Cut() | model.Silence():
                self.hardware(action.node)
            case model.Cordon():
                ids = [{"id": cluster.ids(action.node)[each], "reason": "chaos"} for each in action.indices]
                kubectl.patch("nodedevices", action.node, {"spec": {"unschedulable": ids}})
            case model.Kill("extender"):
                cluster.extender.kill()
                cluster.extender.start(ready=False)
            case model.Kill():
                node, pids = cluster.victims(action.part, action.node)
                cluster.send(node, pids, signal.SIGKILL)
            case model.Freeze():
                node, pids = cluster.victims(action.part, action.node)
                cluster.send(node, pids, signal.SIGSTOP)
                self._thaws.append((time.monotonic() + action.seconds, node, pids))
            case model.RestartKubelet():
                rig.restart_kubelet(action.node)
            case model.StopKubelet():
                rig.rig.stop_kubelet(action.node)
            case model.StartKubelet():
                rig.rig.start_kubelet(action.node)
            case model.StopApiServer():
                rig.rig.stop_apiserver()
            case model.StartApiServer():
                rig.rig.start_apiserver()
                wait_until("the API server answers", lambda: kubectl.run("get", "--raw", "/readyz"))
                self._restart_controllers = True
            case model.FillDisk():
                for disk in DISKS:
                    rig.shell(action.node, f"head -c 1G /dev/zero > {disk}/chaos 2> /dev/null || true")
            case model.FreeDisk():
                rig.shell(action.node, "rm -f " + " ".join(f"{disk}/chaos" for disk in DISKS))
            case model.SpoilState():
                node, pids = cluster.victims("agent", action.node)
                cluster.send(node, pids, signal.SIGSTOP)
                torn = f"[ ! -e {STATE} ] || truncate -s -20 {STATE}"
                rig.shell(action.node, torn if action.how == "torn" else f"rm -f {STATE}")
                cluster.send(node, pids, signal.SIGKILL)
            case model.Settle():
                for each in model.ends(before):
                    self.perform(each, before)
                self.settle()
            case _:
                raise AssertionError(action)

    def hardware(self, node: str, *, storm: str = "") -> None:
        plan = self.plan.nodes[node]
        faults = [(index, kind, event) for index, (kind, event) in sorted(plan.faults.items())]
        self.cluster.rig.hardware(node, machines.hardware(node, faults, plan.cut, silent=plan.silent, storm=storm))

    def policy(self, action: model.SetPolicy) -> None:
        rig, node = self.cluster.rig, self.plan.nodes[action.node]
        for section in ("resources", "sharing") if action.section == "resources" else (action.section,):
            name = policy_name(section, action.node)
            said = machines.section(section, node.chosen, self.cluster.ids(action.node))
            if said is None:
                rig.drop_policy(name)
            else:
                sections = {section: said, **machines.BESIDE.get(section, {})}
                rig.policy(name, sections, selector={"kubernetes.io/hostname": action.node})

    def pod(self, action: model.CreatePod) -> dict[str, Any]:
        spec = self.cluster.rig.pod_spec(action.node, {})
        spec["terminationGracePeriodSeconds"] = 1  # with 0 a deletion is one by force
        [main] = spec["containers"]
        made: dict[str, list[dict[str, Any]]] = {"containers": [], "initContainers": []}
        for part in action.parts:
            container = {
                **main,
                "name": part.name,
                "resources": {"limits": {resource: str(count) for resource, count in part.limits}},
            }
            if part.claims:
                container["resources"]["claims"] = [{"name": "claim"}]
            match part.kind:
                case "init":
                    container["command"] = ["sleep", "3"]
                case "sidecar":
                    container["restartPolicy"] = "Always"
            made["containers" if part.kind == "main" else "initContainers"].append(container)
        metadata: dict[str, Any] = {"name": action.name, "namespace": NAMESPACE}
        if action.cores:
            metadata["annotations"] = {
                f"nodedevices.io/gpu-cores.{part.name}": str(action.cores) for part in action.parts
            }
        more: dict[str, Any] = {"schedulerName": SCHEDULER} if action.extender else {}
        if action.claim:
            more["resourceClaims"] = [{"name": "claim", "resourceClaimName": action.claim.name}]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **made, **more}}

    # --- what is seen -------------------------------------------------------------------------------------------------
    def look(self) -> Seen:
        self.thaw()
        seen = self.cluster.look()
        self.history = invariants.remember(self.history, seen)
        return seen

    def _note_evicting(self) -> None:
        """Nodes whose pods may be evicted by the plan as it is: also a while after it has changed, since an eviction
        that was sent is in nobody's hands any more."""
        until = self.journal.now + EVICTING_SECONDS
        evict = [name for name, node in self.plan.nodes.items() if node.chosen.get("faults") == "evict"]
        self._evicting |= dict.fromkeys(evict, until)

    def wrong_now(self, seen: Seen) -> list[str]:
        self._note_evicting()
        evicting = frozenset(name for name, until in self._evicting.items() if self.journal.now <= until)
        self.history = invariants.without_evicted(self.history, seen, self.plan, evicting)
        return invariants.at_every_moment(seen, self.history, self.plan, evicting)

    def check(self) -> None:
        """What is wrong at one moment and at the next, since the witnesses are not read at one instant."""
        wrong = self.wrong_now(self.look())
        if wrong:
            time.sleep(LOOK_SECONDS)
            again = self.wrong_now(self.look())
            if still := [each for each in wrong if each in again]:
                raise Violated(still)

    def settle(self) -> None:
        """Waits until everything holds that must hold in the end."""
        began = time.monotonic()
        if self._restart_controllers:  # their informers try again ever more rarely: no run needs to wait for that
            self.cluster.rig.rig.restart_controllers()
            for node in machines.NODES:
                self.cluster.rig.restart_kubelet(node)
            self._restart_controllers = False
        wrong: list[str] = ["nothing was seen"]
        spoken = began
        while time.monotonic() < began + SETTLE_SECONDS:
            seen = self.look()
            wrong = [*self.wrong_now(seen), *invariants.in_the_end(seen, self.history, self.plan)]
            self.read_logs()
            if not wrong and not self._thaws:
                self.journal.say(f"      settled after {time.monotonic() - began:.1f} s")
                return
            if time.monotonic() > began + CONFIRM_AFTER_SECONDS:
                self.confirm(seen)
            if time.monotonic() > spoken + SPEAK_SECONDS:
                spoken = time.monotonic()
                for each in wrong[:6]:
                    self.journal.say(f"      not yet: {each[:600]}")
            time.sleep(LOOK_SECONDS)
        raise Violated([f"not within {SETTLE_SECONDS:g} s: {each}" for each in wrong])

    def confirm(self, seen: Seen) -> None:
        """A person says of devices that are well again that they are: some makers' drivers cannot."""
        for name, node in seen.nodes.items():
            plan = self.plan.nodes[name]
            ill = [
                each["id"]
                for each in node.shown.get("status", {}).get("devices", ())
                if each["health"]["state"] == "Unhealthy" and each["index"] not in plan.faults
            ]
            with suppress(KubectlError):
                self.cluster.rig.confirm(name, ill, node.shown)

    def quiet(self) -> None:
        """After what a change is watched for, nothing is written any more: for a while, not even once."""
        log, began = self.cluster.rig.rig.audit_log, time.monotonic()
        while True:
            begin = audit.end(log)
            self._wait(QUIET_SECONDS)
            written = invariants.needless(each for each in audit.requests(log, after=begin))
            if not written:
                self.journal.say(f"      quiet after {time.monotonic() - began - QUIET_SECONDS:.0f} s")
                return
            if time.monotonic() > began + QUIET_WITHIN_SECONDS:
                raise Violated([f"written while nothing happens: {each}" for each in written])

    def keep_what_is_there(self) -> None:
        """What a person needs who searches for the cause."""
        for kind in ("nodedevices", "devicepolicies", "nodes", "pods", "resourceclaims", "resourceslices", "events"):
            with suppress(KubectlError):
                self.journal.keep(f"{kind}.yaml", self.cluster.kubectl.run("get", kind, "-A", "-o", "yaml"))

    def read_logs(self) -> None:
        lines = self._logs.new(self.journal.now)
        with (self.journal.folder / "loud.log").open("a") as kept:
            for one in lines:
                if one.loud:
                    kept.write(f"{self.number} {one.part} {one.node} {one.text}\n")
        with (self.journal.folder / "all.log").open("a") as kept:
            kept.writelines(f"{self.number} {one.part} {one.node} {one.text}\n" for one in lines)
        for one in unexplained(lines, self.done):
            self.unexplained.append(one)
            self.journal.say(f"      UNEXPLAINED {one.part} {one.node}: {one.text[:300]}")

    # --- time ---------------------------------------------------------------------------------------------------------
    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.thaw()
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))

    def thaw(self) -> None:
        """What was frozen long enough goes on."""
        due = [each for each in self._thaws if each[0] <= time.monotonic()]
        for each in due:
            self._thaws.remove(each)
            self.cluster.send(each[1], each[2], signal.SIGCONT)


def claim(wanted: model.Claim) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": claimed.class_name(wanted.resource), "count": wanted.count}
    name, quantity = wanted.amount
    if name:
        exactly["capacity"] = {"requests": {name: quantity}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": wanted.name, "namespace": NAMESPACE},
        "spec": {"devices": {"requests": [{"name": "some", "exactly": exactly}]}},
    }
