"""Every condition between fields that the API server checks (CEL), broken and kept by two objects that are much alike.

What a policy may say a node's configuration may, too: such a pair stands for the same rule of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from nodedevices_api.container import WORDS
from nodedevices_api.fields import NOT_EXTENDED
from support.contract import node, policy

Json = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """One condition at one place of a kind, and what the API server says of the object that breaks it."""

    kind: str
    place: str
    field: str  # as the API server names the place
    refused: Json
    accepted: Json
    says: str


def _pair(kind: str, place: str, refused: Json, accepted: Json, says: str) -> Pair:
    return Pair(kind, place, place.replace("[]", "[0]"), refused, accepted, says)


def _both(place: str, refused: Json, accepted: Json, says: str) -> Iterator[Pair]:
    """Of sections: as a policy, and as a node's configuration."""
    place = place and f".{place}"
    yield _pair("DevicePolicy", f"spec{place}", policy(**refused), policy(**accepted), says)
    yield _pair("NodeDevices", f"spec.config{place}", node(config=refused), node(config=accepted), says)


def _slices(**entry: Any) -> Json:
    return {"sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2, **entry}]}}


def _with_variable(value: str) -> Json:
    resource = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "container": {"env": [{"name": "A", "value": value}]}}
    return {"sharing": {"strategy": "memory", "resources": [resource]}}


def _written() -> Iterator[Pair]:
    document = yaml.safe_load(Path(__file__).with_name("celcases.yaml").read_text(encoding="utf-8"))
    for pair in document["sections"]:
        yield from _both(**pair)
    for kind, make in (("DevicePolicy", policy), ("NodeDevices", node)):
        for pair in document[kind]:
            place = ".".join(filter(None, ("spec", pair["place"])))
            yield _pair(kind, place, make(**pair["refused"]), make(**pair["accepted"]), pair["says"])


PAIRS: tuple[Pair, ...] = (
    *_written(),
    *_both(
        "sharing.resources[].container.env[]",
        _with_variable("$(MEMORY)"),
        _with_variable("$5 $(DEVICE_ID)$"),
        f"A is $(MEMORY): a value may hold {', '.join(f'$({word})' for word in WORDS)}",
    ),
    *(
        pair
        for place, make in (
            ("capacity[].name", lambda name: {"capacity": [{"name": name, "perNode": 1}]}),
            ("resources.devices[].name", lambda name: {"resources": {"devices": [{"match": {}, "name": name}]}}),
            ("sharing.resources[].name", lambda name: _slices(name=name)),
            ("sharing.resources[].rename", lambda name: _slices(rename=name)),
        )
        for pair in _both(
            place,
            make("a.kubernetes.io/b"),
            make("a.kubernetes.example/b"),
            f'"a.kubernetes.io/b": not allowed; {NOT_EXTENDED}',
        )
    ),
)
