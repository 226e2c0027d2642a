"""The node's effective configuration in NodeDevices.spec, from all DevicePolicies; decided in desired/configuration.py.

The first of the concerns: the others act by what it resolves, and on the Node only once it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.configuration import Configuration, Previous, resolve
from nodedevices_operator.desired.stored import understood
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, PolicyRecord, PolicyRef

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sources:
    """What a configuration is made of."""

    node: NodeRecord
    policies: Sequence[PolicyRecord]
    previous: Previous


class ConfigurationConcern:
    info = Info("configuration", condition=names.POLICY_RESOLVED)

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer

    async def observe(self, view: View) -> Sources | Outcome:
        if view.node is None:
            return Outcome()  # nobody knows its labels
        previous = Previous(view.record.config, view.record.policies)
        return Sources(view.node, list(view.cache.policies.values()), previous)

    def desired(self, view: View, observed: Sources) -> Configuration:
        return resolve(observed.node.labels, observed.policies, observed.previous)

    async def apply(self, view: View, desired: Configuration) -> Outcome:
        view.configuration, view.understood = desired, understood(desired.config)
        view.stored = in_spec(view.record, desired)
        verdict = (desired.status, desired.reason, desired.message)
        if view.stored:
            return Outcome(verdict)
        try:
            raw = await self._writer.config(view.record, desired)
        except KubeError as error:
            return Outcome(verdict, problems=(error,))
        view.wrote(Kind.NODE_DEVICES, raw)
        view.stored = True
        log.info("configuration set", node=view.record.name, hash=desired.config_hash)
        return Outcome(verdict)

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""


def in_spec(record: NodeDevicesRecord, configuration: Configuration) -> bool:
    """Whether the object says so already."""
    return (
        record.config is not None
        and record.config == configuration.config
        and record.config_name == configuration.config_name
        and record.config_hash == configuration.config_hash
        and _by_name(record.policies) == _by_name(configuration.policies)
    )


def _by_name(refs: tuple[PolicyRef, ...]) -> dict[str, tuple[int, int, frozenset[str]]]:
    """Server-side apply keeps the members of a map-like list, not always their order."""
    return {ref.name: (ref.generation, ref.priority, frozenset(ref.sections)) for ref in refs}
