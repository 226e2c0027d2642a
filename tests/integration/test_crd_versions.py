"""S39: of our objects every field is stored that the models have, also where CRDs and objects are of two versions.

The API server prunes what a CRD does not know. `schemacases.complete` makes objects that together have every field; the
previous version's CRDs (support.previous) stand beside ours, under another group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_api.base import Loose
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.nodedevices import NodeDevices
from nodedevices_common.errors import InputError
from support import previous, schemacases
from support.direct import OURS, Direct, reach
from support.kubectl import Kubectl, wait_until

CRDS = Path(__file__).parents[2] / "crds"
MODELS: dict[str, type[Loose]] = {"DevicePolicy": DevicePolicy, "NodeDevices": NodeDevices}
PLURALS = {"DevicePolicy": "devicepolicies", "NodeDevices": "nodedevices"}
KINDS = sorted(PLURALS)
BESIDE = "previous.nodedevices.io"

Json = dict[str, Any]


def allowed(document: Json) -> bool:
    try:
        parse(MODELS[document["kind"]], document)
    except InputError:
        return False
    return True


def ours() -> dict[str, Json]:
    return {kind: yaml.safe_load((CRDS / f"{plural}.yaml").read_text()) for kind, plural in PLURALS.items()}


@pytest.fixture
def direct(kubectl: Kubectl) -> Direct:
    found = reach(kubectl.kubeconfig, "nodedevices")
    assert found is not None
    return found


def stored(direct: Direct, group: str, document: Json, number: int) -> Json:
    """What the API server has of it, written whole. On our kinds the status is applied once more, as the agent does:
    without fields that the CRD does not know, for which a server-side apply is refused."""
    place = f"{group}/{PLURALS[document['kind']]}"
    name = f"object-{number}"
    body = {**document, "apiVersion": group.removeprefix("/apis/"), "metadata": {"name": name}}
    made = direct.request("POST", place, body)
    if "status" in body:
        made = direct.request("PUT", f"{place}/{name}/status", {**made, "status": body["status"]})
        if group == OURS:
            applied = {key: value for key, value in body.items() if key != "spec"}
            direct.apply({**applied, "status": made["status"]}, manager="agent", subresource="status")
    again = direct.request("GET", f"{place}/{name}")
    assert {key: again.get(key) for key in ("spec", "status")} == {key: made.get(key) for key in ("spec", "status")}
    direct.request("DELETE", f"{place}/{name}")
    return {key: made[key] for key in ("spec", "status") if key in made}


def known(document: Json, crd: Json) -> Json:
    """The parts of a document that this CRD has a place for."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return {key: schemacases.pruned(document[key], schema[key]) for key in ("spec", "status") if key in document}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_the_contract_is_stored(direct: Direct, kind: str) -> None:
    documents = schemacases.complete(ours()[kind], allowed)
    for number, document in enumerate(documents):
        assert stored(direct, OURS, document, number) == {
            key: document[key] for key in ("spec", "status") if key in document
        }


@pytest.fixture
def beside(direct: Direct, kubectl: Kubectl) -> Iterator[str]:
    """The path of the previous version's kinds, beside ours."""
    place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    names = []
    for kind, crd in previous.crds().items():
        names.append(f"{PLURALS[kind]}.{BESIDE}")
        crd["metadata"]["name"], crd["spec"]["group"] = names[-1], BESIDE
        direct.request("POST", place, crd)
    served = [f"crd/{name}" for name in names]
    wait_until("CRDs", lambda: kubectl.run("wait", "--for=condition=Established", "--timeout=30s", *served))
    yield f"/apis/{BESIDE}/v1alpha1"
    for name in names:
        direct.request("DELETE", f"{place}/{name}")


def allowed_without_what_is_gone(document: Json, new: Json) -> bool:
    return allowed({**document, **known(document, new)})


def of_both(document: Json) -> Json:
    """Without what the previous CRDs refuse: an entry of `expect` had to have `match`."""
    spec = {key: value for key, value in document.get("spec", {}).items() if key != "expect"}
    if "config" in spec:
        spec["config"] = {key: value for key, value in spec["config"].items() if key != "expect"}
    return {**document, "spec": spec}


def test_s39_objects_of_either_version_are_taken_by_the_crds_of_the_other(direct: Direct, beside: str) -> None:
    """Nothing is refused, what the CRD knows is whole, and the rest is left out."""
    for kind in KINDS:
        old, new = previous.crds()[kind], ours()[kind]
        for number, document in enumerate(schemacases.complete(new, allowed)):
            both = of_both(document)
            assert stored(direct, beside, both, number) == known(both, old)
        rest = partial(allowed_without_what_is_gone, new=new)
        for number, document in enumerate(schemacases.complete(old, rest)):
            assert stored(direct, OURS, document, number) == known(document, new)
