"""A DeviceClass for each extended resource that DRA serves."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_api.dra import class_name
from nodedevices_operator.cache.store import Cache
from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.reconcile.whole_objects import REVIEWS, DeviceClasses, device_classes
from nodedevices_operator.records.names import DEVICE_CLASSES
from support.fakekube import FakeKube
from support.opfacts import GPU, device, record, resource

BY_DRA = {"resources": [resource(1, 1, by="dra")]}
PATH = f"{DEVICE_CLASSES}/gpu.nvidia.com"


def test_a_class_is_called_as_an_object_may_be() -> None:
    assert class_name("nvidia.com/gpu") == "gpu.nvidia.com"
    assert class_name("example.com/MIG_1g.10gb") == "mig-1g.10gb.example.com"
    plugins, dra = record(device(0), resources=[resource(1, 1)]), record(device(0), **BY_DRA)
    assert device_classes([plugins]) == {}
    assert {name: spec["extendedResourceName"] for name, spec in device_classes([plugins, dra, dra]).items()} == {
        "gpu.nvidia.com": GPU
    }


def test_a_pod_that_requests_shares_of_memory_by_their_name_gets_no_claim_of_single_shares() -> None:
    by_memory = record(device(0), resources=[resource(80, 80, by="dra") | {"sharing": "memory"}])
    [spec] = device_classes([record(device(0), **BY_DRA), by_memory]).values()
    assert "extendedResourceName" not in spec


class Server(FakeKube):
    """Server-side apply creates what is not there."""

    async def apply(self, path: str, body: JsonObject, manager: str, *, force: bool = True) -> JsonObject:
        if (refused := self.fails("apply", path)) is not None:
            raise refused
        self.writes.append(("apply", path, body))
        return self.put(path, {**body, "metadata": {**body["metadata"], "uid": "u"}})


@pytest.fixture
def kube() -> FakeKube:
    server = Server()
    server.rights = {"deviceclasses"}
    return server


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def classes(kube: FakeKube, cache: Cache) -> DeviceClasses:
    return DeviceClasses(cache, Writer(kube, OperatorMetrics()))


def serve(cache: Cache, **status: Any) -> None:
    cache.node_devices["n1"] = record(device(0), **status)


async def test_it_is_made_for_what_dra_serves_and_goes_with_it(
    kube: FakeKube, cache: Cache, classes: DeviceClasses
) -> None:
    serve(cache, resources=[resource(1, 1)])
    assert await classes.keep() == ""
    assert kube.objects == {}
    serve(cache, **BY_DRA)
    assert await classes.keep() == ""
    spec = kube.objects[PATH]["spec"]
    assert spec["extendedResourceName"] == GPU
    [selects] = spec["selectors"]
    assert f'.resource == "{GPU}"' in selects["cel"]["expression"]
    writes = len(kube.writes)
    assert await classes.keep() == ""
    assert len(kube.writes) == writes
    serve(cache, resources=[resource(1, 1)])
    assert await classes.keep() == ""
    assert PATH not in kube.objects


async def test_the_class_of_shares_of_memory_has_no_extended_resource_and_nothing_was_dropped(
    kube: FakeKube, cache: Cache, classes: DeviceClasses
) -> None:
    serve(cache, resources=[resource(80, 80, by="dra") | {"sharing": "memory"}])
    assert await classes.keep() == ""
    assert "extendedResourceName" not in kube.objects[PATH]["spec"]


@pytest.mark.parametrize("refused", ["create", "list"])
async def test_without_the_right_or_the_api_it_says_what_to_install_where_dra_serves_and_else_nothing(
    kube: FakeKube, cache: Cache, classes: DeviceClasses, refused: str
) -> None:
    kube.fails = lambda verb, _path: KubeError("404", status=404) if verb == refused else None
    assert await classes.keep() == ""
    serve(cache, **BY_DRA)
    assert "component dra for the operator" in await classes.keep()


async def test_an_operator_that_was_away_when_the_last_node_left_removes_the_class_and_no_other(
    kube: FakeKube, cache: Cache, classes: DeviceClasses
) -> None:
    serve(cache, **BY_DRA)
    await classes.keep()
    serve(cache, resources=[resource(1, 1)])
    assert await DeviceClasses(cache, Writer(kube, OperatorMetrics())).keep() == ""
    assert PATH not in kube.objects


async def test_without_the_component_nothing_is_asked_that_would_be_refused(
    kube: FakeKube, cache: Cache, classes: DeviceClasses
) -> None:
    kube.rights = set()
    asked: list[str] = []
    kube.fails = lambda _verb, path: asked.append(path)
    assert await classes.keep() == ""
    assert asked == [REVIEWS]
    assert await classes.keep() == ""
    assert asked == [REVIEWS]


async def test_a_class_of_another_stays_and_a_dropped_field_is_said(
    kube: FakeKube, cache: Cache, classes: DeviceClasses
) -> None:
    serve(cache, **BY_DRA)
    kube.fails = lambda verb, _path: KubeError("conflict", status=409) if verb == "apply" else None
    assert "another manager owns it" in await classes.keep()
    kube.fails = lambda _verb, _path: None
    assert "drops extendedResourceName" in "".join(classes.dropped("x", {"extendedResourceName": GPU}, {}))


async def test_cleanup_takes_ours_and_looks_only_where_it_may(kube: FakeKube, cache: Cache) -> None:
    serve(cache, **BY_DRA)
    await DeviceClasses(cache, Writer(kube, OperatorMetrics())).keep()
    looked: list[str] = []

    def seen(verb: str, path: str) -> None:
        looked.append(path)

    kube.fails = seen
    kube.rights = set()
    assert await clean_up(kube, dry_run=False) == 0
    assert DEVICE_CLASSES not in looked
    kube.rights = {"deviceclasses"}
    assert await clean_up(kube, dry_run=False) == 0
    assert PATH not in kube.objects
