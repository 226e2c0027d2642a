"""Where the claims come from that a driver is to prepare: an API server, of which a driver reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dra_sanity.driver import Claim
from support.kubectl import Kubectl, KubectlError, wait_until

REQUESTS = ("one", "two", "other")  # of every claim
LATER_SECONDS = 60.0


@dataclass(frozen=True)
class Result:
    """A device that a scheduler allocated."""

    request: str
    driver: str
    pool: str
    device: str

    @property
    def json(self) -> dict[str, str]:
        return {"request": self.request, "driver": self.driver, "pool": self.pool, "device": self.device}


class Claims(Protocol):
    def devices(self, driver: str, pool: str) -> Sequence[str]:
        """The names of the devices that the driver has published, once there are two of them."""
        ...

    def give(self, name: str, results: Sequence[Result]) -> Claim:
        """A claim with this allocation; one that is there is allocated anew."""
        ...

    def remove(self, claim: Claim) -> None: ...


@dataclass
class ClusterClaims:
    """On a real API server, beside which no scheduler and no kubelet needs to be."""

    kubectl: Kubectl
    namespace: str = "default"

    def devices(self, driver: str, pool: str) -> Sequence[str]:
        def published() -> list[str]:
            found = [
                device["name"]
                for each in self.kubectl.items("resourceslices")
                if each["spec"]["driver"] == driver and each["spec"]["pool"]["name"] == pool
                for device in each["spec"].get("devices") or ()
            ]
            return found if len(found) > 1 else []

        return wait_until(f"two devices of {driver} on {pool} are in ResourceSlices", published, seconds=LATER_SECONDS)

    def give(self, name: str, results: Sequence[Result]) -> Claim:
        found = self.kubectl.get("resourceclaim", name, self.namespace)
        if found is None:
            found = self.kubectl.create(_body(name, self.namespace))
        elif found.get("status", {}).get("allocation"):
            self._allocate(name, None)
        if results:
            self._allocate(name, {"devices": {"results": [each.json for each in results]}})
        return Claim(self.namespace, name, found["metadata"]["uid"])

    def remove(self, claim: Claim) -> None:
        self.kubectl.delete("resourceclaim", claim.name, namespace=claim.namespace)

    def _allocate(self, name: str, allocation: Mapping[str, Any] | None) -> None:
        body = {"status": {"allocation": allocation}}
        self.kubectl.patch("resourceclaim", name, body, namespace=self.namespace, subresource="status")


def _body(name: str, namespace: str) -> dict[str, Any]:
    requests = [{"name": each, "exactly": {"deviceClassName": "any"}} for each in REQUESTS]
    metadata = {"name": name, "namespace": namespace}
    spec = {"devices": {"requests": requests}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


PROBLEMS = (KubectlError,)
