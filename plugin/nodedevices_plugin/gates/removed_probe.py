"""Devices of a probe that was taken away (pipeline.probe_set), and what another reports at their places."""

from __future__ import annotations

from nodedevices_api.withheld import PROBE_REMOVED

from nodedevices_plugin.gates.base import Check, GateFacts, by_device
from nodedevices_plugin.model import Plan


def removed_probe(shape: Plan, facts: GateFacts) -> Check | None:
    return by_device(PROBE_REMOVED, facts.removed_probes)
