"""Nothing that the CRDs bound or demand goes untried: each has an object that is accepted and one that is refused.

Here our own parsing judges them, and completeness is seen to; the integration tests put the same objects to a real API
server (test_crd_bounds).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from crdgen import crds
from nodedevices_api.base import Loose
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.nodedevices import NodeDevices
from nodedevices_common.errors import InputError
from support import schemacases
from support.cases import cases
from support.celcases import PAIRS

MODELS: dict[str, type[Loose]] = {"DevicePolicy": DevicePolicy, "NodeDevices": NodeDevices}
BY_NAME = {kind.model.__name__: kind for kind in crds.KINDS}
KINDS = sorted(BY_NAME)


@cache
def crd(kind: str) -> dict[str, Any]:
    """Not at import, which is each worker's."""
    return crds.custom_resource_definition(BY_NAME[kind])


def refusal(document: dict[str, Any]) -> str:
    """Our own; empty where we accept it."""
    try:
        parse(MODELS[document["kind"]], document)
    except InputError as error:
        return str(error)
    return ""


def made(kind: str) -> list[schemacases.Case]:
    return schemacases.cases(crd(kind), lambda document: not refusal(document))


@cases("kind", *KINDS)
def test_every_bound_has_an_object_at_it_and_one_beyond_it(kind: str) -> None:
    cases = made(kind)
    assert [(case.place, case.bound) for case in cases] == schemacases.bounds(crd(kind))
    assert len(cases) > 150, "the schema has many bounds"
    for case in cases:
        assert case.accepted != case.refused, case.name  # `made` takes no case that we do not accept
        if not case.of_status:  # a status is our programs' own, and read leniently
            assert refusal(case.refused), case.name


def conditions(kind: str) -> Counter[tuple[str, str]]:
    """(place, message) of every rule that is no pattern, and is about one object (tests/integration has the others)."""
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return Counter(
        (place, rule["message"])
        for place, node in schemacases.nodes(schema)
        for rule in node.get(schemacases.RULES, ())
        if schemacases.pattern_of(rule["rule"]) is None and "oldSelf" not in rule["rule"]
    )


@cases("kind", *KINDS)
def test_every_condition_between_fields_has_an_object_that_breaks_it_and_one_that_keeps_it(kind: str) -> None:
    rules = conditions(kind)
    tried = Counter(
        next(
            ((place, message) for place, message in rules if place == pair.place and pair.says.endswith(message)),
            (pair.place, pair.says),
        )
        for pair in PAIRS
        if pair.kind == kind
    )
    assert tried == rules


@cases("pair", *PAIRS, ids=[f"{pair.kind} {pair.says[:48]}" for pair in PAIRS])
def test_our_own_parsing_judges_these_objects_as_the_api_server_does(pair: Any) -> None:
    assert not refusal(pair.accepted)
    assert refusal(pair.refused)
