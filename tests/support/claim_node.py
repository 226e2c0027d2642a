"""What answers the kubelet on one node, by both of its APIs, without an agent around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

from nodedevices_api.sections import Injection
from nodedevices_plugin.claims.offer import ClaimOffer
from nodedevices_plugin.granting.answers import Answers, node_containers
from nodedevices_plugin.host.claim_files import ClaimFiles
from nodedevices_plugin.kubelet.dra.prepare import Claims
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import DRA_DRIVER, Inventory, Plan
from nodedevices_plugin.sharing.base import NO_SETTINGS, Settings
from support.dra import allocated

NODE, BOARD = "node-a", "acme.com/board"


class Node:
    """What answers the kubelet, on one lock; `use` as the agent's loop does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recent = RecentAllocations()
        self.answers = Answers(recent=self.recent)
        self.offer = ClaimOffer(self.recent.granting)
        self.files = ClaimFiles(folder / "claims", folder / "cdi", driver=DRA_DRIVER)
        self.stored: dict[tuple[str, str], dict[str, Any]] = {}
        self.read = Event()  # a claim
        self.claims = self.waiting(0.0)

    def waiting(self, seconds: float) -> Claims:
        return Claims(self.offer, self.files, get=self.get, pool=NODE, wait_seconds=seconds)

    def get(self, namespace: str, name: str) -> Mapping[str, Any]:
        self.read.set()
        return self.stored.get((namespace, name), {})

    def use(self, wanted: Plan, devices: Inventory, modes: Settings = NO_SETTINGS) -> None:
        containers = node_containers(devices, Injection(), modes=modes)
        self.answers.use(wanted, devices, containers)
        self.offer.use(wanted, devices, containers)

    def withdraw(self, wanted: Plan, devices: Inventory) -> bool:
        """As decided before what was granted since."""
        by_plugin = self.answers.withdraw(wanted, devices, known=())
        return self.offer.withdraw(wanted, devices, known={}) and by_plugin

    def allocate(self, id_: str, resource: str = BOARD) -> None:
        with self.recent.granting:
            self.answers.grant(resource, [id_])
            self.recent.add(resource, (id_,))

    def prepare(self, name: str, *devices: str, uid: str = "", **consumed: str) -> list[str]:
        claim = allocated(name, *devices, uid=uid, **consumed)
        self.stored["ml", name] = claim
        return [entry.result.device for entry, _ in self.claims.prepare("ml", name, claim["metadata"]["uid"])]

    def edits(self, name: str) -> Mapping[str, Any]:
        """What the one CDI device of a prepared claim brings into a container."""
        [made] = json.loads((self.folder / "cdi" / f"{DRA_DRIVER}-claim-uid-{name}.json").read_text())["devices"]
        edits: Mapping[str, Any] = made["containerEdits"]
        return edits
