"""Names of Dynamic Resource Allocation that agent, operator and command line share."""

from typing import Final

DRA_DRIVER: Final = "nodedevices.io"  # also the domain of its devices' attributes
RESOURCE_API: Final = "resource.k8s.io/v1"
RESOURCE_ATTRIBUTE: Final = "resource"  # of a device: the extended resource that it is offered as


def class_name(resource: str) -> str:
    """Return the DeviceClass of an extended resource: `gpu.nvidia.com` of `nvidia.com/gpu`. A name may have what an
    object's may not."""
    domain, _, own = resource.partition("/")
    return f"{own.lower().replace('_', '-')}.{domain}"
