"""What the API server says at and beyond every bound of our CRDs, and of every condition between fields.

The objects are made from the schema (schemacases) or written down (celcases); tests/unit/api sees to it that none is
missing. Conditions and patterns, which people run into, go through `kubectl apply`, all in one command, for its words.
The bounds are many hundreds, and the words are the API server's own: they go to it directly, by one connection. Nothing
is stored: all of it is a dry run.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from nodedevices_api.base import Loose
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.nodedevices import NodeDevices
from nodedevices_common.errors import InputError
from support import schemacases
from support.celcases import PAIRS
from support.direct import OURS, Direct, reach
from support.kubectl import Kubectl, KubectlError
from support.patience import CLUSTER_PATIENCE_SECONDS
from support.schemacases import Case

CRDS = Path(__file__).parents[2] / "crds"
MODELS: dict[str, type[Loose]] = {"DevicePolicy": DevicePolicy, "NodeDevices": NodeDevices}
PLURALS = {"DevicePolicy": "devicepolicies", "NodeDevices": "nodedevices"}
KINDS = sorted(PLURALS)

Json = dict[str, Any]


class Server:
    """The API server by one connection, which tries objects and stores none."""

    def __init__(self, direct: Direct) -> None:
        at = urlsplit(direct.server)
        self._connection = http.client.HTTPSConnection(
            at.hostname or "", at.port, context=direct.context, timeout=CLUSTER_PATIENCE_SECONDS
        )

    def close(self) -> None:
        self._connection.close()

    def refuses(self, document: Json, *, status_of: Mapping[str, Any] | None) -> str:
        """What it says of the document; empty when it takes it. `status_of`: the object whose status it would be;
        None: a new object."""
        path = f"{OURS}/{PLURALS[document['kind']]}"
        if status_of is None:
            method, document = "POST", {**document, "metadata": {"name": "tried"}}
        else:
            method, path = "PUT", f"{path}/{status_of['metadata']['name']}/status"
            document = {**status_of, "status": document["status"]}
        self._connection.request(
            method,
            f"{path}?dryRun=All&fieldValidation=Strict",
            json.dumps(document),
            {"Content-Type": "application/json"},
        )
        with closing(self._connection.getresponse()) as answer:
            said = json.loads(answer.read())
        return "" if answer.status < 300 else str(said["message"])


@pytest.fixture
def server(kubectl: Kubectl) -> Iterator[Server]:
    direct = reach(kubectl.kubeconfig, "nodedevices")
    assert direct is not None
    with closing(Server(direct)) as found:
        yield found


def allowed(document: Json) -> bool:
    try:
        parse(MODELS[document["kind"]], document)
    except InputError:
        return False
    return True


@cache
def made(kind: str) -> tuple[Case, ...]:
    return tuple(schemacases.cases(yaml.safe_load((CRDS / f"{PLURALS[kind]}.yaml").read_text()), allowed))


@pytest.mark.parametrize("kind", ["DevicePolicy", pytest.param("NodeDevices", marks=pytest.mark.long)])
def test_at_every_bound_an_object_is_taken_and_beyond_it_refused_with_field_and_bound(
    server: Server, kubectl: Kubectl, kind: str
) -> None:
    example, *_ = schemacases.EXAMPLES[kind]
    kubectl.run("create", "-f", "-", stdin=json.dumps(example))
    stored = kubectl.object(kind, example["metadata"]["name"])
    wrong = []
    tried: set[str] = set()
    for case in made(kind):
        status_of = stored if case.of_status else None
        text = json.dumps((case.of_status, case.accepted))
        if text not in tried and (said := server.refuses(case.accepted, status_of=status_of)):
            wrong.append(f"{case.name}: at it: {said[:600]}")
        tried.add(text)
        said = server.refuses(case.refused, status_of=status_of)
        wrong += [f"{case.name}: no {each!r} in {said[:600]!r}" for each in case.says if each not in said]
    assert not wrong, "\n".join(wrong)


def applied(kubectl: Kubectl, documents: Sequence[Json]) -> dict[str, str]:
    """By name what `kubectl apply` says of each document that is refused."""
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
    try:
        kubectl.run("apply", "--dry-run=server", "--validate=ignore", "-f", "-", stdin=body)
    except KubectlError as error:
        parts = re.split(r'nodedevices\.io "([a-z0-9-]+)" is invalid:', error.said)
        return dict(zip(parts[1::2], parts[2::2], strict=True))
    return {}


def named(documents: Sequence[Json]) -> list[Json]:
    return [{**each, "metadata": {"name": f"object-{number}"}} for number, each in enumerate(documents)]


def test_kubectl_apply_says_where_a_condition_or_pattern_is_broken_and_what_would_be_right(admin: Kubectl) -> None:
    patterns = [case for kind in KINDS for case in made(kind) if case.bound == schemacases.PATTERN_RULE]
    refused = [*(pair.refused for pair in PAIRS), *(case.refused for case in patterns)]
    expected = [
        *((pair.field, f"{pair.field}: Invalid value", pair.says) for pair in PAIRS),
        *((case.name, *case.says) for case in patterns),
    ]
    said = applied(admin, named(refused))
    wrong = [
        f"{what}: no {each!r} in {said.get(f'object-{number}', 'no refusal')!r}"
        for number, (what, *words) in enumerate(expected)
        for each in words
        if each not in said.get(f"object-{number}", "")
    ]
    assert not wrong, "\n".join(wrong)


def test_kubectl_apply_takes_an_object_that_keeps_each_condition_and_pattern(admin: Kubectl) -> None:
    patterns = [case for kind in KINDS for case in made(kind) if case.bound == schemacases.PATTERN_RULE]
    accepted = [*(pair.accepted for pair in PAIRS), *(case.accepted for case in patterns)]
    assert applied(admin, named(accepted)) == {}
