"""What a ResourceClaim asks of this node: the part of its allocation that is ours.

A claim may have devices of other drivers and, through us, of other nodes' pools. Configuration for other drivers is
theirs. A claim that makes no sense is refused with a text for the pod's Event, and nothing of it raises otherwise: it
comes from the API server, but people and schedulers write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from nodedevices_common.errors import RefusedError
from nodedevices_common.raw import Raw, mapping, mappings, text

MAX_RESULTS = 32  # of a claim (resource.k8s.io/v1)
SHOWN = 128


class ClaimError(RefusedError):
    """Why a claim cannot be prepared. The text reaches the pod's Events, and says what to do."""


class NotNowError(ClaimError):
    """Why a claim cannot be prepared at this moment: the device may come, or come back, while the kubelet waits."""


class Result(Struct, frozen=True, kw_only=True):
    """One device that the scheduler allocated. `request`: its name in the claim, without the alternative's.
    `admin`: for an administrator, beside whoever has it. `share` and `consumed`: of a device that claims share."""

    request: str
    device: str
    admin: bool = False
    share: str = ""
    consumed: Mapping[str, str] = field(default_factory=dict)


class Claim(Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]  # of our driver and pool; at least one

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read(claim: Any, *, uid: str, driver: str, pool: str) -> Claim:
    """Return the claim, as the API server answered.

    Args:
        uid: of the claim that the kubelet means; another of the same name is another claim.

    Raises:
        ClaimError: it is not that claim, is not allocated here, or asks for what we do not have.
    """
    metadata = mapping(mapping(claim).get("metadata"))
    namespace, name = text(metadata.get("namespace")), text(metadata.get("name"))
    shown = f"ResourceClaim {namespace}/{name}"[:SHOWN]
    if text(metadata.get("uid")) != uid:
        raise ClaimError(f"{shown} was deleted, and another of the same name was created: delete the pod")
    for config in mappings(_allocated(claim).get("config")):
        if text(mapping(config.get("opaque")).get("driver")) == driver:
            raise ClaimError(
                f"{shown}: config[].opaque for {driver} is not supported; a DevicePolicy sets how devices are shared"
            )
    found = results_of(claim, driver=driver, pool=pool)
    if not found:
        raise ClaimError(f"{shown} has no device of {driver} allocated on node {pool}")
    if len(found) > MAX_RESULTS:
        raise ClaimError(f"{shown} has {len(found)} devices allocated; a claim has at most {MAX_RESULTS}")
    return Claim(uid=uid, namespace=namespace, name=name, results=tuple(_result(shown, result) for result in found))


def results_of(claim: Any, *, driver: str, pool: str) -> list[Raw]:
    """Return the results of the claim's allocation that are of this driver and pool, as they stand."""
    return [
        result
        for result in mappings(_allocated(claim).get("results"))
        if (text(result.get("driver")), text(result.get("pool"))) == (driver, pool)
    ]


def _allocated(claim: Any) -> Raw:
    return mapping(mapping(mapping(mapping(claim).get("status")).get("allocation")).get("devices"))


def _result(shown: str, result: Raw) -> Result:
    request, device = text(result.get("request")), text(result.get("device"))
    if not request or not device:
        raise ClaimError(f"{shown}: a result of its allocation has no request or no device")
    return Result(
        request=request.partition("/")[0],
        device=device,
        admin=result.get("adminAccess") is True,
        share=text(result.get("shareID")),
        consumed={str(key): text(value) for key, value in mapping(result.get("consumedCapacity")).items()},
    )
