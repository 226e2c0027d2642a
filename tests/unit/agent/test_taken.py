"""A configuration is applied when the kubelet has taken every name that it asks for."""

from __future__ import annotations

from typing import Any

from nodedevices_api.defaults import with_defaults
from nodedevices_api.errors import parse
from nodedevices_api.sections import Sections
from nodedevices_plugin.model import OfferedResource, Plan, Refused, Registration, RegistrationState, SchedulableId
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.status.reporter import Taken, with_kubelet
from support.cases import cases

GPU, BAD = "nvidia.com/gpu", "example.com/bad"
RULES = [{"match": {"type": "nic"}, "name": GPU}, {"match": {}, "name": BAD}]
SECTIONS = with_defaults(parse(Sections, {"resources": {"devices": RULES}}))
BEFORE = Taken(config_hash="aa", done=True, shown="aa")
NEW = ConfigStatus(applied_hash="bb")
REGISTERED, PENDING = RegistrationState.REGISTERED, RegistrationState.PENDING


def plan(*names: str) -> Plan:
    ids = (SchedulableId(id="GPU-1", device_id="GPU-1"),)
    return Plan(resources=tuple(OfferedResource(name=name, ids=ids) for name in names))


def states(**found: RegistrationState) -> tuple[Registration, ...]:
    known = {"gpu": GPU, "bad": BAD}
    return tuple(Registration(resource=known[name], state=state, message="m") for name, state in found.items())


def after(
    registrations: tuple[Registration, ...],
    *names: str,
    config: ConfigStatus = NEW,
    before: Taken = BEFORE,
    was_applied: bool = True,
) -> ConfigStatus:
    return with_kubelet(config, before, plan(*names), registrations, SECTIONS, was_applied=was_applied)[0]


def test_what_no_kubelet_could_refuse_is_applied_and_what_it_has_taken_nothing_takes_back() -> None:
    assert after(states(gpu=REGISTERED), GPU) == NEW
    assert after(states(gpu=RegistrationState.SERVED_BY_ANOTHER), GPU) == NEW
    assert after(()) == NEW
    assert after(states(gpu=PENDING), GPU, config=ConfigStatus(applied_hash="aa")).reason == "Applied"
    before, config = Taken(shown="aa"), ConfigStatus(applied_hash="aa")
    assert after(states(gpu=PENDING), GPU, config=config, before=before).reason == "Applied"
    assert after((), GPU, config=config, before=before, was_applied=False).reason == "WaitingForKubelet"


def test_a_refused_name_is_a_refusal_of_the_field_that_gives_it_or_of_none() -> None:
    found = after(states(gpu=REGISTERED, bad=RegistrationState.REJECTED), GPU, BAD)
    said = f"the kubelet refuses {BAD}: m"
    assert (found.reason, found.message, found.applied_hash) == ("RegistrationRejected", said, "aa")
    assert found.refused == Refused(field="resources.devices[1].name", message=said)
    rejected = (Registration(resource="nvidia.com/other", state=RegistrationState.REJECTED, message="m"),)
    found = after(rejected, "nvidia.com/other")
    assert found.refused is not None
    assert (found.reason, found.refused.section) == ("RegistrationRejected", "")


@cases(
    "registrations",
    (),
    states(gpu=PENDING),
    states(gpu=RegistrationState.KUBELET_UNREACHABLE),
    ids=["not served yet", "registering", "no kubelet"],
)
def test_until_the_kubelet_has_a_name_the_earlier_configuration_is_reported(registrations: Any) -> None:
    found = after(registrations, GPU)
    assert (found.reason, found.applied_hash, found.refused) == ("WaitingForKubelet", "aa", None)
    assert found.message.startswith(f"the kubelet has not taken {GPU} yet")


def test_before_the_first_plan_the_earlier_hash_is_reported_and_a_wrong_configuration_first() -> None:
    assert with_kubelet(NEW, BEFORE, None, (), SECTIONS, was_applied=True)[0].applied_hash == "aa"
    config = ConfigStatus(applied_hash="aa", reason="ConfigInvalid", message="replicas: 1")
    assert after(states(gpu=RegistrationState.REJECTED), GPU, config=config) == config
