"""ResourceClaims as this node reads them, and records of what was prepared: the memory of DRA, which survives the
agent.

A claim may have devices of other drivers and, through us, of other nodes' pools. Configuration for other drivers is
theirs. A claim that makes no sense is refused with a text for the pod's Event, and nothing of it raises otherwise: it
comes from the API server, but people and schedulers write it.

There is one record for each claim. It has the id of each device, not its name or its device nodes: after a reboot the
same minor number can be another GPU, and a claim gets the device that it was given, or an error. Of shares it has the
numbers, and what they bring into a container: a policy may share the device otherwise by the time that the claim is
prepared again. One file for each claim, so that a bad byte costs one claim and not the node.

A newer version may write more than this one understands. After a downgrade such a record stays as it is, and what it
names as held stays held, each device as a whole: so every version has `prepared`, with `part_id`, `resource` and
`result` of each device. So does what a damaged record still names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace
from nodedevices_common.errors import RefusedError
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.text import clip, listing, printable

from nodedevices_plugin.model import ContainerEdits, Inventory, device_names, ids

VERSION = 1
_ENTRY = re.compile(r'\{\s*"result"')  # where a device of a record begins
UID = re.compile(r"[A-Za-z0-9-]{1,64}")  # it becomes a file's name
MAX_RESULTS = 32  # of a claim (resource.k8s.io/v1)
SHOWN = 128


class ClaimError(RefusedError):
    """Why a claim cannot be prepared. The text reaches the pod's Events, and says what to do."""


class NotNowError(ClaimError):
    """Why a claim cannot be prepared at this moment: the device may come, or come back, while the kubelet waits."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One device that the scheduler allocated. `request`: its name in the claim, without the alternative's.
    `admin`: for an administrator, beside whoever has it. `share` and `consumed`: of a device that claims share."""

    request: str
    device: str
    admin: bool = False
    share: str = ""
    consumed: Mapping[str, str] = msgspec.field(default_factory=dict)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]  # of our driver and pool; at least one

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_claim(claim: Any, *, uid: str, driver: str, pool: str) -> Claim:
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


# --- what was prepared -----------------------------------------------------------------------------------------------
class RecordError(RefusedError):
    """A file that is not a record; the text says why."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`part_id`: of the device or partition. `resource`: that offered it. `shares`: their numbers; none: all of it.
    `unit`: the amount of memory that a share is. `added`: what a container is given for the shares of the request's
    results of this resource, at the first of them."""

    result: Result
    part_id: str
    resource: str
    shares: tuple[int, ...] = ()
    unit: str = ""
    added: ContainerEdits | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """What it is in the plan."""
        return tuple(ids.compose(self.part_id, number, self.unit or None) for number in self.shares) or (self.part_id,)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = VERSION
    uid: str
    namespace: str
    name: str
    prepared: tuple[Prepared, ...]

    @property
    def not_understood(self) -> str:
        """Return what a newer version wrote that this one does not know; empty: nothing."""
        return ""

    @property
    def problem(self) -> str:
        """Return what is wrong with the file; empty: nothing."""
        return ""

    @property
    def claim(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_of(self, claim: Claim) -> bool:
        """True when the claim has the same results. A claim that people created may be allocated again."""
        return self.uid == claim.uid and tuple(entry.result for entry in self.prepared) == claim.results

    @property
    def own(self) -> tuple[Prepared, ...]:
        """Return what no other claim may get: not what administrators have."""
        return tuple(entry for entry in self.prepared if not entry.result.admin)

    @property
    def held(self) -> frozenset[str]:
        """Return the ids of these."""
        return frozenset(id_ for entry in self.own for id_ in entry.ids)

    @property
    def administered(self) -> frozenset[tuple[str, str]]:
        """Return the claim, with each part that others may have beside it."""
        parts = {entry.part_id for entry in self.prepared} - {entry.part_id for entry in self.own}
        return frozenset((self.claim, part) for part in parts)


class NewerRecord(Record, frozen=True, kw_only=True):
    """What is understood of a newer version's record; `prepared` is empty where that cannot be read. It is never
    written."""

    why: str

    @property
    def not_understood(self) -> str:
        return self.why

    @property
    def problem(self) -> str:
        return (
            f"{self.uid}.json was written by a newer version ({self.why}): what the claim has stays its own, and it is "
            "not prepared again; install that version again"
        )


class DamagedRecord(Record, frozen=True, kw_only=True):
    """What a damaged record still names. It is never written. Whose claim it is, is not known: it ends when the kubelet
    unprepares the claim, or prepares it again."""

    why: str

    def is_of(self, claim: Claim) -> bool:
        return False

    @property
    def problem(self) -> str:
        parts = listing(clip(printable(entry.part_id), SHOWN) for entry in self.prepared)
        return (
            f"{self.uid}.json is damaged ({clip(printable(self.why), 2 * SHOWN)}): {parts}, which it still names, goes "
            "to no other pod until the claim's pod has ended"
        )


class DraFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent's DRA side knows, for the pipeline.

    `records`: what each claim was given, by UID. `released`: records of claims that have just ended, and that the
    kubelet's last List may show. `in_slices`: names of the devices that are in the node's
    ResourceSlices, or left them a moment ago. `unsaid`: what they cannot say of a device, by name, for people.
    `unavailable`: why DRA cannot be used here at all. `waits_for`: what is missing yet before it may be used.
    """

    records: Mapping[str, Record] = msgspec.field(default_factory=dict)
    released: tuple[Record, ...] = ()
    in_slices: frozenset[str] = frozenset()
    unsaid: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    unavailable: str = ""
    waits_for: str = ""


def with_names_of_claims(inventory: Inventory, records: Iterable[Record]) -> Inventory:
    """Return the inventory, in which what a claim was given keeps its name, also while it is not here: another device
    of that name would seem to be the claim's."""
    given: dict[str, str] = {}  # name -> id
    for record in records:
        for entry in record.prepared:
            given.setdefault(entry.result.device, entry.part_id)
    names = device_names(inventory) if given else {}
    pinned = {id_: name for name, id_ in given.items() if names.get(id_) != name}
    return replace(inventory, pinned=pinned) if pinned else inventory


def file_name(uid: str) -> str:
    """Raises RecordError for what is not a UID, such as a path."""
    if UID.fullmatch(uid) is None:
        raise RecordError(f"{uid[:64]!r} is not the UID of a ResourceClaim")
    return f"{uid}.json"


def encode(record: Record) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def decode(content: bytes, *, uid: str) -> Record:
    """Return the record of a file that is named by this uid. Raises RecordError."""
    if not content.endswith(b"\n"):
        raise RecordError(f"{len(content)} bytes without their end")
    try:
        raw = mapping(msgspec.json.decode(content))
        record = _newer(raw) or msgspec.convert(raw, type=Record)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(str(error)) from error
    if record.uid != uid:
        raise RecordError("it is of another claim")
    if record.version < VERSION or not (record.prepared or record.not_understood):
        raise RecordError("it has no device" if record.version == VERSION else f"there is no version {record.version}")
    return record


def salvaged(content: bytes, *, uid: str, why: str) -> DamagedRecord | None:
    """Return what a file that is not a record still names; None: no device."""
    document = content.decode(errors="replace")
    found: dict[str, Prepared] = {}
    for place in _ENTRY.finditer(document):
        with suppress(ValueError, RecursionError):
            entry = mapping(json.JSONDecoder().raw_decode(document, place.start())[0])
            prepared = msgspec.convert(_known(entry), type=Prepared)
            found.setdefault(prepared.part_id, prepared)
    return DamagedRecord(uid=uid, namespace="", name="", prepared=tuple(found.values()), why=why) if found else None


def _newer(raw: Raw) -> NewerRecord | None:
    """Return a newer version's record; None: it is none. Raises ValidationError where its claim is not named."""
    version = raw.get("version")
    prepared = mappings(raw.get("prepared"))
    parts = [(raw, Record), *((entry, Prepared) for entry in prepared)]
    parts += [(mapping(entry.get("result")), Result) for entry in prepared]
    unknown = next((key for part, kind in parts for key in part if key not in kind.__struct_fields__), None)
    if isinstance(version, int) and version > VERSION:
        why = f"version {version}, and {VERSION} is known here"
    elif unknown is not None:
        why = f"the key {printable(unknown[:64])} is not known here"
    else:
        return None
    known = {"version": version, **{key: raw.get(key, "") for key in ("uid", "namespace", "name")}, "prepared": []}
    record = msgspec.convert({**known, "why": why}, type=NewerRecord)
    try:
        return replace(record, prepared=tuple(msgspec.convert(_known(entry), type=Prepared) for entry in prepared))
    except msgspec.ValidationError:
        return record


def _known(entry: Raw) -> dict[str, Any]:
    """All of the device: what it has of it is not known to be understood."""
    return {key: entry[key] for key in ("result", "part_id", "resource") if key in entry}
