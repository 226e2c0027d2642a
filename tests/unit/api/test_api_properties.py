"""Round trips of generated values: whatever a model can hold survives the way to the API server and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings, strategies as st
from nodedevices_api.base import Strict, to_dict
from nodedevices_api.defaults import with_defaults
from nodedevices_api.errors import parse
from nodedevices_api.nodedevices import Device, DeviceHealth, Holder
from nodedevices_api.sections import Sections
from nodedevices_common.errors import InputError
from nodedevices_common.text import clip
from support.fuzzing import scaled

WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,63}", fullmatch=True)
IDS = st.from_regex(r"[A-Za-z0-9._:-]{1,96}", fullmatch=True)
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", fullmatch=True)
TIMES = st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
COUNTS = st.integers(0, 2**31 - 1)

holders = st.builds(
    Holder,
    namespace=NAMES,
    pod=NAMES,
    container=NAMES,
    resource=st.none() | st.just("nvidia.com/gpu"),
    claim=st.none() | NAMES,
    ids=st.lists(IDS, max_size=4).map(tuple),
    since=TIMES,
)
healths = st.builds(
    DeviceHealth,
    state=st.sampled_from(["Healthy", "Degraded", "Unhealthy", "Unknown"]),
    reason=st.just("") | WORDS,
    message=st.text(max_size=600),
    since=TIMES,
    recovery_action=st.none() | WORDS,
    fault_domain=st.none() | st.sampled_from(["Application", "Device", "Node"]),
)
devices = st.builds(
    Device,
    id=IDS,
    name=NAMES,
    type=WORDS,
    index=st.integers(0, 1023),
    health=healths,
    holders=st.lists(holders, max_size=3).map(tuple),
    holders_truncated=st.none() | COUNTS,
)

durations = st.integers(0, 86400)
REASONS = st.lists(st.sampled_from(["Xid13", "Xid79", "Xid14*", "LinkDown"]), min_size=1, unique=True)
health_rules: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"reasons": REASONS, "state": st.sampled_from(["Ignored", "Degraded", "Unhealthy"])},
    optional={"after": st.just({"count": 2, "windowSeconds": 60})},
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any subset of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


shares = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["timeSlicing", "mps"]),
        "resources": st.just([{"name": "nvidia.com/gpu", "replicas": 4}]),
    },
    optional={"renameByDefault": st.booleans()},
) | st.fixed_dictionaries(
    {
        "strategy": st.just("memory"),
        "resources": st.fixed_dictionaries(
            {"name": st.just("nvidia.com/gpu"), "memoryUnit": st.just("1Gi")},
            optional={
                "enforcement": st.just("none"),
                "container": some(
                    env=st.just([{"name": "LIMIT", "value": "$(MEMORY_LIMIT_MIB)m"}]),
                    mounts=st.just([{"hostPath": "/opt/limiter", "containerPath": "/limiter"}]),
                ),
            },
        ).map(lambda rule: [rule]),
    }
)
configurations = some(
    serving=some(mode=st.sampled_from(["Serve", "Observe"]), api=st.sampled_from(["DevicePlugin", "DRA"])),
    partitions=some(strategy=st.sampled_from(["none", "single", "mixed"])),
    sharing=some(renameByDefault=st.booleans()) | shares,
    health=some(rules=st.lists(health_rules, max_size=4), holdDownSeconds=durations),
    faults=some(xidNodeCondition=st.booleans(), evictGraceSeconds=durations, taintEffect=st.just("NoSchedule")),
    labels=some(featureDiscovery=st.booleans()),
    discovery=some(probes=st.lists(st.sampled_from(["auto", "nvml", "nics"]), min_size=1, unique=True)),
    expect=st.lists(
        st.fixed_dictionaries({"count": st.integers(1, 4096)}, optional={"type": st.just("gpu")}), max_size=3
    ),
    idle=some(afterSeconds=st.integers(60, 604800)),
    capacity=st.lists(
        st.fixed_dictionaries({"name": NAMES.map(lambda name: f"example.com/{name}"), "perNode": COUNTS}),
        max_size=3,
        unique_by=lambda entry: entry["name"],
    ),
)


@settings(max_examples=scaled(60), deadline=None)
@given(devices)
def test_a_device_survives_the_way_to_the_api_server_and_back(device: Device) -> None:
    written = json.loads(json.dumps(to_dict(device)))
    assert parse(Device, written) == device
    assert to_dict(parse(Device, written)) == written


@settings(max_examples=scaled(100), deadline=None)
@given(configurations)
def test_a_configuration_is_written_exactly_as_it_was_given_or_refused(document: dict[str, Any]) -> None:
    try:
        sections = parse(Sections, document)
    except InputError:
        rules = document["health"]["rules"]
        assert any(rule["state"] == "Ignored" and "after" in rule for rule in rules)
        return
    assert to_dict(sections) == document


@settings(max_examples=scaled(100), deadline=None)
@given(configurations)
def test_defaults_never_change_what_was_given(document: dict[str, Any]) -> None:
    try:
        sections = parse(Sections, document)
    except InputError:
        return
    resolved = with_defaults(sections)
    for name in document:
        given, filled = getattr(sections, name), getattr(resolved, name)
        if isinstance(given, Strict):
            assert all(getattr(filled, field) == getattr(given, field) for field in given.model_fields_set)
        else:
            assert filled == given
    assert with_defaults(resolved) == resolved


@given(st.text(), st.integers(1, 50))
def test_a_clipped_text_fits_and_begins_like_the_whole(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped) <= limit
    assert clipped == text or (clipped.endswith("…") and text.startswith(clipped[:-1]))
