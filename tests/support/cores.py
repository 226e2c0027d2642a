"""A resource by memory whose computing power is shared, too."""

from __future__ import annotations

from typing import Any

from nodedevices_api.sections import SharedResource, Sharing
from nodedevices_plugin.model import OfferedResource
from nodedevices_plugin.offering.shape import PlanSettings
from support.facts import GIB, gpu, healthy, inventory_of
from support.plans import make_plan

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"


def offered(*sizes: int, **rule: Any) -> OfferedResource:
    """GPUs of so many GiB each."""
    gpus = tuple(gpu(number, memory_bytes=size * GIB) for number, size in enumerate(sizes))
    shared = SharedResource(name=GPU, memory_unit="1Gi", cores=True, **rule)
    settings = PlanSettings(sharing=Sharing(strategy="memory", resources=(shared,)))
    [found] = make_plan(inventory_of(*gpus), healthy(*gpus), settings).resources
    return found
