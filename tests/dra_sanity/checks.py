"""What a kubelet and container runtimes need of a DRA driver: rows of what holds, whether it does, and what was seen.

A function makes some rows, one after the other; an error on its way is a row of its own, and costs the rest of them.
Facts: pkg/kubelet/cm/dra, pkg/kubelet/pluginmanager and k8s.io/dynamic-resource-allocation of Kubernetes 1.37.2.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import yaml
from dra_sanity.claims import PROBLEMS, Claims, Result
from dra_sanity.driver import HEALTH, SERVICES, Claim, Driver
from nodedevices_plugin.kubelet.api import dra_v1_pb2 as dra

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CDI_NAME = re.compile(r"[A-Za-z][\w.-]*/[A-Za-z][\w-]*=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?")
STRANGER = "dra-sanity-other.example.com"
AT_ONCE = 8
HEALTH_SECONDS = 30.0


Row = tuple[str, bool, object]  # what must hold, whether it does, what was seen


@dataclass
class Bench:
    """A driver, and what it is given. `cdi`: the folders where container runtimes read specifications."""

    driver: Driver
    claims: Claims
    pool: str
    cdi: Sequence[Path]
    devices: Sequence[str] = ()
    _given: list[Claim] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=count)
    _prefix: str = field(default_factory=lambda: f"sanity-{uuid.uuid4().hex[:6]}")

    def claim(self, *devices: str, pool: str = "", others: Sequence[str] = (), again: Claim | None = None) -> Claim:
        """A claim of these devices, each by a request of its own, and of another driver's. `again`: that one, allocated
        anew."""
        driver = self.driver.info().name
        own = [Result(request, driver, pool or self.pool, device) for request, device in zip(("one", "two"), devices)]  # noqa: B905
        theirs = [Result("other", STRANGER, self.pool, device) for device in others]
        name = again.name if again else f"{self._prefix}-{next(self._number)}"
        found = self.claims.give(name, [*own, *theirs])
        if again is None:
            self._given.append(found)
        return found

    def prepare(self, claim: Claim) -> Any:
        """The answer for one claim: `devices`, or `error`."""
        try:
            answer = self.driver.prepare(claim)
        except grpc.RpcError as error:  # which is as good, where the call has one claim
            return dra.NodePrepareResourceResponse(error=str(error) or "no answer")
        assert set(answer) == {claim.uid}, f"the answer is for {sorted(answer)}, and the call was for {claim.uid}"
        return answer[claim.uid]

    def unprepare(self, claim: Claim) -> str:
        """The error; empty: there is none."""
        try:
            answer = self.driver.unprepare(claim)
        except grpc.RpcError as error:
            return str(error) or "no answer"
        assert set(answer) == {claim.uid}, f"the answer is for {sorted(answer)}, and the call was for {claim.uid}"
        return answer[claim.uid].error

    def gets(self, *devices: str) -> bool:
        """Whether a new claim is prepared with these."""
        return names(self.prepare(self.claim(*devices))) == sorted(devices)

    def runtime_finds(self) -> Mapping[str, Path]:
        """Every device in CDI specifications, and the file."""
        found: dict[str, Path] = {}
        for path in (path for folder in self.cdi for path in folder.glob("*") if path.suffix in (".json", ".yaml")):
            spec = yaml.safe_load(path.read_text())
            found |= {f"{spec['kind']}={device['name']}": path for device in spec["devices"]}
        return found

    def end(self) -> None:
        """Every claim that was given is released and gone."""
        for claim in self._given:
            self.driver.unprepare(claim)
            self.claims.remove(claim)
        self._given.clear()


def names(answer: Any) -> list[str]:
    """Of the devices of a claim; none where it was refused."""
    return [] if answer.error else sorted(device.device_name for device in answer.devices)


def cdi(answer: Any) -> list[str]:
    return [name for device in answer.devices for name in device.cdi_device_ids]


@dataclass(frozen=True)
class Outcome:
    what: str
    state: str  # ok, FAILED, skipped
    seen: str = ""


def run(bench: Bench, *, waiting: bool = True) -> list[Outcome]:
    """Run every check. `waiting`: also those in which a driver may wait for most of a minute, as a kubelet lets it."""
    found: list[Outcome] = []
    for rows in (registration, health, prepare, reboot, several, refusals, unprepare, anew, odd):
        found += _made(rows, bench)
    return [*found, *(_made(waits, bench) if waiting else (Outcome("what a driver waits for", "skipped", "--quick"),))]


def _made(rows: Callable[[Bench], Iterator[Row]], bench: Bench) -> Iterator[Outcome]:
    try:
        for what, holds, seen in rows(bench):
            yield Outcome(what, "ok") if holds else Outcome(what, "FAILED", " ".join(str(seen).split()))
    except (AssertionError, LookupError, ValueError, grpc.RpcError, *PROBLEMS) as error:
        said = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else repr(error)
        yield Outcome(f"{rows.__name__} goes on to its end", "FAILED", said)
    finally:
        bench.end()


def registration(bench: Bench) -> Iterator[Row]:
    driver, info = bench.driver, bench.driver.info()
    path, versions = Path(info.endpoint), list(info.supported_versions)
    yield "GetInfo answers within a second, twice the same", info == driver.info(), driver.info()
    yield "the type is DRAPlugin", info.type == "DRAPlugin", info.type
    is_name = SUBDOMAIN.fullmatch(info.name) is not None and len(info.name) <= 63
    yield "the name is a DNS subdomain of at most 63 characters", is_name, info.name
    yield "the endpoint is the absolute path of a socket", path.is_absolute() and path.is_socket(), path
    short = max(len(str(path)), len(str(driver.socket))) < 108
    yield "the sockets' paths are as short as they must be", short, path
    yield "a version that kubelets know is supported", bool(SERVICES.keys() & set(versions)), versions
    yield "and none that they do not know", set(versions) <= {*SERVICES, *HEALTH}, versions
    with contextlib.suppress(grpc.RpcError):  # kubelets ignore the answer
        driver.notify(registered=False, error="dra_sanity refuses it once")
    driver.notify(registered=True)
    yield "a refusal of the kubelet is survived", driver.info() == info, driver.info()


def health(bench: Bench) -> Iterator[Row]:
    for version in (each for each in bench.driver.info().supported_versions if each in HEALTH):
        yield (
            f"{version} is served, and begins with devices",
            bool(bench.driver.health(version, HEALTH_SECONDS)),
            "none",
        )


def prepare(bench: Bench) -> Iterator[Row]:
    one, two = bench.devices[:2]
    yield "a call without claims has an answer without claims", not bench.driver.prepare(), "there are some"
    claim = bench.claim(one)
    answer = bench.prepare(claim)
    yield "a claim is prepared with its device", names(answer) == [one], answer
    right = all(each.pool_name == bench.pool and set(each.request_names) <= {"one"} for each in answer.devices)
    yield "the device is of its pool and for its request", right, answer
    given = cdi(answer)
    yield "CDI names are qualified", bool(given) and all(map(CDI_NAME.fullmatch, given)), given
    yield "a container runtime finds them in files", set(given) <= bench.runtime_finds().keys(), given
    again = bench.prepare(claim)
    yield "a claim that is prepared again has the same answer", again == answer, again
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda _: bench.prepare(claim), range(AT_ONCE)))
    yield "and in several calls at once", all(each == answer for each in answers), answers
    bench.unprepare(claim)
    both = bench.prepare(bench.claim(one, two))
    requests = {(each.device_name, *each.request_names) for each in both.devices}
    yield "two requests have a device each", requests == {(one, "one"), (two, "two")}, both


def reboot(bench: Bench) -> Iterator[Row]:
    """It empties the CDI folder."""
    before, claim = set(bench.runtime_finds()), bench.claim(bench.devices[0])
    given = cdi(bench.prepare(claim))
    for path in {path for name, path in bench.runtime_finds().items() if name in set(given) - before}:
        path.unlink()
    again = bench.prepare(claim)
    yield "a claim whose CDI file has gone keeps its names", cdi(again) == given, again
    yield "and its file is written again", set(given) <= bench.runtime_finds().keys(), given


def several(bench: Bench) -> Iterator[Row]:
    one = bench.devices[0]
    good = bench.claim(one)
    gone = Claim(good.namespace, f"{good.name}-gone", "b6a4b4a0-0000-4000-8000-000000000001")
    answer = bench.driver.prepare(gone, good)
    yield "each claim of a call has its own answer", set(answer) == {good.uid, gone.uid}, answer
    yield "a claim that is not there has an error", bool(answer[gone.uid].error), answer
    yield "and costs no other claim of the call", names(answer[good.uid]) == [one], answer


def refusals(bench: Bench) -> Iterator[Row]:
    claim, nothing = bench.claim(bench.devices[0]), bench.claim()
    other = bench.prepare(Claim(claim.namespace, claim.name, "b6a4b4a0-0000-4000-8000-000000000002"))
    yield "a claim that was created anew under the same name is another one", bool(other.error), other
    answer = bench.prepare(nothing)
    yield "a claim without an allocation is refused", bool(answer.error), answer
    elsewhere = bench.prepare(bench.claim(bench.devices[0], pool=f"{bench.pool}-other"))
    mixed = bench.prepare(bench.claim(bench.devices[1], others=[bench.devices[0]]))
    yield "devices of other drivers in a claim are theirs", names(mixed) == [bench.devices[1]], mixed
    here = [each for each in elsewhere.devices if each.pool_name == bench.pool]
    yield "a device of another node's pool is not prepared here", not here, elsewhere


def waits(bench: Bench) -> Iterator[Row]:
    one = bench.devices[0]
    absent = bench.prepare(bench.claim(one, "dra-sanity-none"))
    yield "a claim with a device that is not there is refused", bool(absent.error), absent
    yield "and holds nothing", bench.gets(one), "its other device is not free"
    second = bench.prepare(bench.claim(one))
    yield "a device that is prepared for another claim is refused", bool(second.error), second


def unprepare(bench: Bench) -> Iterator[Row]:
    one = bench.devices[0]
    before, claim = set(bench.runtime_finds()), bench.claim(one)
    given = set(cdi(bench.prepare(claim))) - before
    yield "a claim is unprepared", not (said := bench.unprepare(claim)), said
    yield "its CDI devices have gone", not given & bench.runtime_finds().keys(), sorted(given)
    yield "it can be unprepared again", not (said := bench.unprepare(claim)), said
    yield "its device goes to the next claim", bench.gets(one), "refused"
    bench.end()
    never = Claim("default", "never", "b6a4b4a0-0000-4000-8000-000000000003")
    yield "a uid that never was is unprepared", not (said := bench.unprepare(never)), said
    claim = bench.claim(one)
    bench.prepare(claim)
    bench.claims.remove(claim)
    yield "unprepare needs the uid alone: the claim may be gone", not (said := bench.unprepare(claim)), said
    yield "and its device goes to the next claim", bench.gets(one), "refused"


def anew(bench: Bench) -> Iterator[Row]:
    """One uid with another allocation, as of a claim that people created and several pods use one after the other."""
    one, two = bench.devices[:2]
    claim = bench.claim(one)
    bench.prepare(claim)
    bench.unprepare(claim)
    bench.claim(two, again=claim)
    answer = bench.prepare(claim)
    yield "a claim that was allocated anew after its end has its new device", names(answer) == [two], answer
    bench.claim(one, again=claim)
    answer = bench.prepare(claim)
    yield "and while it is prepared never its old one", bool(answer.error) or names(answer) == [one], answer


def odd(bench: Bench) -> Iterator[Row]:
    for method in ("NodePrepareResources", "NodeUnprepareResources", "NodeNone"):
        refused = False
        try:
            bench.driver.raw(method, b"\xff" * 64)
        except grpc.RpcError:
            refused = True
        yield f"bytes that are no request of {method} are refused", refused, "answered"
    above = {path for folder in bench.cdi for path in folder.parent.glob("*")}
    for text in ("", "../../sanity", "/tmp/sanity", "a" * 10_000, "\x00", "\u00e9\n"):
        bench.prepare(Claim(text, text, text))
        bench.unprepare(Claim(text, text, text))
    made = {path for folder in bench.cdi for path in folder.parent.glob("*")} - above
    yield "odd uids and names write no file elsewhere", not made, made
    yield "and the driver goes on", bench.gets(bench.devices[0]), "a claim is not prepared any more"
