"""Which warnings of our parts a chaos run may leave in their logs, and what explains each: a table, and pure functions.

A line is explained by something that was done not long before it (`because`), or by nothing at all where it is said of
what the policies request (`always`). A line that no row matches, or whose reason was not there, fails the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from chaos.claimed import SHARED_OTHERWISE

LEVELS = ("warning", "error", "critical")
# A row's reason counts for so long after the step: informers of Kubernetes try again twice a minute in the end.
SECONDS = 90.0

API = ("StopApiServer", "StartApiServer", "Begin")  # the CRDs have just been made when a run begins
# How an API server is away, or has not read its roles or the CRDs yet.
AWAY = "no answer|it ended|forbidden|: (429|503) "
KUBELET = ("RestartKubelet", "StopKubelet", "StartKubelet")
DEATHS = ("Kill", "Freeze", "SpoilState")


@dataclass(frozen=True)
class Line:
    part: str  # agent, probe, operator, extender
    node: str
    text: str
    at: float  # seconds of the run

    @property
    def said(self) -> dict[str, Any]:
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def loud(self) -> bool:
        """A warning or worse, or no line of ours at all: a traceback, or what a library wrote."""
        said = self.said
        return not said or said.get("level") in LEVELS


@dataclass(frozen=True)
class Done:
    action: str  # its kind
    at: float


@dataclass(frozen=True)
class Row:
    event: str  # a pattern for the whole message
    because: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("agent", "operator", "extender")
    more: str = ""  # a pattern that must be found in the whole line

    def matches(self, line: Line) -> bool:
        event = str(line.said.get("event", line.text))
        return (
            line.part in self.parts
            and re.fullmatch(self.event, event) is not None
            and re.search(self.more, line.text) is not None
        )


ROWS: tuple[Row, ...] = (
    # --- devices ---
    Row("device not healthy", ("Strike", "Cut", "Silence", "Freeze", "Kill", "SpoilState", "SetPolicy", "Cure")),
    Row("roll-out stopped", ("Strike", "Cordon", "Cut"), ("operator",), more="are no longer offered"),
    Row("roll-out stopped", ("SetPolicy", "Cut"), ("operator",), more="the previous configuration stays in effect"),
    Row("roll-out stopped", KUBELET, ("operator",), more="its Node is not Ready"),
    Row("invalid annotation", ("Strike", "Cut", "SpoilState"), ("agent",), more="this node has no such device"),
    Row("configuration", ("SetPolicy", "Cut", "SpoilState"), ("agent",), more="ConfigInvalid"),
    Row("configuration", ("FillDisk",), ("agent",), more="StateNotSaved"),
    Row("the probe reports problems", ("SetPolicy", "Settle"), more="ProbeRemoved"),
    Row("configuration entry matches nothing on this node", ("SetPolicy", "Strike", "Cut", *DEATHS)),
    # A Node that changed between the operator's reading of its taints and the patch; it is tried again at once.
    Row("write failed", parts=("operator",), more=r"PATCH /api/v1/nodes/\S+: 422 "),
    # --- the API server is away, or has just started and has read no role yet ---
    Row("failed to watch NodeDevices", API, more=AWAY),
    Row("failed to write NodeDevices", API, more=AWAY),
    Row("watch of this node's pods", (*API, "Settle"), more=AWAY),
    Row("failed to watch NodeDevices", API, ("agent",), more="too old resource version"),
    Row("failed to list", API, ("operator",), more=AWAY),
    Row("forbidden to list, retrying; .*", API, ("operator",)),
    Row("forbidden", API, ("operator",)),
    Row("write failed|event not written", API, ("operator",), more=AWAY),
    Row("watches ended, .*", API, ("operator",), more="operator is stopping"),
    Row("operator ended", API, ("operator",), more="the Lease was not renewed"),
    Row("watch stalled, restarting", API, ("operator",)),
    Row("watches ended, .*", API, ("operator",), more="watch missed changes that a list shows"),
    Row("failed to watch rejected pods, retrying", API),
    Row(r"Request attempt #\d+/\d+ failed; will retry: .*", API),
    Row("failed to use the Lease", API),
    Row("watch failed", API, parts=("extender",)),
    # --- an operator whose Lease was over, frozen or without an API server, ends, and the next one goes on ---
    Row("write failed|event not written", ("Freeze", *API), ("operator",), more="this replica is not the leader"),
    Row("watches ended, .*", ("Freeze",), ("operator",), more="operator is stopping"),
    Row("operator ended", ("Freeze",), ("operator",), more="is the leader"),
    # --- kubelets ---
    Row("registration", (*KUBELET, *API, "Settle"), more="KubeletUnreachable"),
    Row("pod resources", (*KUBELET, *API, "Settle", *DEATHS), more="PodResourcesIncomplete|PodResourcesUnavailable"),
    # --- the state file ---
    Row("state file not written, a restart of the agent would lose the change", ("FillDisk",), more="No space left"),
    Row("state file unusable, starting without it", ("SpoilState",), more="not JSON"),
    # --- claims and slices ---
    Row("ResourceSlices not up to date", API, ("agent",), more=AWAY),
    # A kubelet that starts deletes them, under an agent that changes them.
    Row("ResourceSlices not up to date", (*KUBELET, "Settle"), ("agent",), more="update ResourceSlice: 404 "),
    # Said again and again while the pod is there. That another claim has the device is no reason: no scheduler does so.
    Row(
        "claim refused: prepare",
        parts=("agent",),
        more="|".join(("does not offer|about to stop|goes to no new pod|is not on this", *SHARED_OTHERWISE)),
    ),
    Row(
        "device classes are not kept",
        ("Freeze", *API),
        ("operator",),
        more=f"{AWAY}|no right to list|this replica is not the leader",
    ),
    # --- a busy machine, whose disk lets them wait; they are compared again later ---
    Row("files for other programs on the node not written", parts=("agent",), more="took more than"),
    Row("CDI specifications not written: .*", parts=("agent",), more="took more than"),
    # --- probes ---
    Row("probe ended", ("Kill", "Freeze"), ("agent",), more="the probe was killed"),
    Row("probe ended", ("Kill", "Freeze"), ("agent",), more="the probe server at .* (closed the connection|refused)"),
    Row("probe ended", ("Kill", "Freeze"), ("agent",), more="connect to the probe server|the probe server at"),
    Row("probe ended", ("Freeze",), ("agent",), more="no good line for"),
    Row("optional device nodes not read, those read last count", ("Kill", "Freeze"), ("agent",)),
    Row(r"nodedevices-probe: (serving at .*|\w+ started \(pid \d+\))", parts=("probe",)),
    Row(r"nodedevices-probe: \w+ ended with status -(9|15) \(pid \d+\)", parts=("probe",)),
    # A probe whose agent has gone ends by itself where it finds that out before the server does.
    Row(r"nodedevices-probe: \w+ ended with status 0 \(pid \d+\)", ("Kill", "SpoilState"), parts=("probe",)),
)


def unexplained(lines: Iterable[Line], done: Collection[Done], rows: Iterable[Row] = ROWS) -> list[Line]:
    """The loud lines for which there is no reason."""
    table = tuple(rows)
    return [each for each in lines if each.loud and not any(explains(row, each, done) for row in table)]


def explains(row: Row, line: Line, done: Iterable[Done]) -> bool:
    if not row.matches(line):
        return False
    return not row.because or any(each.action in row.because and 0 <= line.at - each.at <= SECONDS for each in done)
