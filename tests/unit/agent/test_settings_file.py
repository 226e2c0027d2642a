"""The configuration file: NVIDIA's v1 format, and every mistake in it named by its place."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from nodedevices_plugin.settings.effective import Effective, NodeSettings, resolve, to_saved, understood
from nodedevices_plugin.settings.file import ConfigError, FileConfig, parse
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.vendors.nvidia.flags import NvidiaSettings
from support.cases import cases
from support.contract import INVALID_SHARING
from support.local import restored


def own_of(node: NodeSettings) -> NvidiaSettings:
    """What NVIDIA's flags say of it."""
    own = node.vendors["nvidia"]
    assert isinstance(own, NvidiaSettings)
    return own


SLICED = b"""
version: v1
flags:
  migStrategy: none
  failOnInitError: false
  nvidiaDriverRoot: /
  plugin: {passDeviceSpecs: false, deviceListStrategy: [envvar], deviceIDStrategy: uuid}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 10, devices: all}
    - {name: mig-1g.10gb, replicas: 2}
"""
EVERYTHING = b"""
version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /host
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: example.com/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: packed
  gfd: {oneshot: false, noTimestamp: null, sleepInterval: 60s}
resources:
  gpus: [{pattern: "*H100*", name: h100}]
  mig: [{pattern: "1g.*", name: small}]
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}
imex: {channelIDs: [0], required: true}
"""


def refused(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode() if isinstance(text, str) else text)
    return str(caught.value)


def sliced(resource: str) -> str:
    return f"version: v1\nsharing: {{timeSlicing: {{resources: [{resource}]}}}}\n"


def test_nvidias_documented_example_is_taken_as_it_is() -> None:
    config = parse(SLICED)
    assert config.sharing is not None
    assert [(each.name, each.replicas) for each in config.sharing.resources] == [
        ("nvidia.com/gpu", 10),
        ("nvidia.com/mig-1g.10gb", 2),
    ]
    assert (config.sharing.rename_by_default, config.sharing.fail_requests_greater_than_one) == (True, True)
    assert config.flags["device-list-strategy"] == ("envvar",)


@cases("text", b"version: v1\n", b"version: ''\n", b"flags:\nsharing:\n")
def test_keys_without_values_say_nothing(text: bytes) -> None:
    assert parse(text) == FileConfig()


@cases("text", b"", b"# nothing\n", b"---\n")
def test_an_empty_file_is_taken_as_nvidias_plugin_takes_it_and_known_to_be_empty(text: bytes) -> None:
    assert parse(text) == FileConfig(empty=True)


def test_null_is_not_set_and_an_empty_configuration_of_a_policy_leaves_the_nodes_own() -> None:
    assert parse(b"flags: {migStrategy: null, plugin: null}") == FileConfig()
    assert effective(text=SLICED, spec={}) == effective(text=SLICED)
    assert effective() == effective(text=b"", spec={})


@cases(
    ("text", "says"),
    ("version: v2", "version: 'v2' is not known; give v1"),
    ("versoin: v1", "versoin: unknown key; did you mean version?"),
    ("- v1", "is not a mapping with version, flags and sharing"),
    ("flags: [a]", "flags: ['a'] is not a mapping"),
    ("flags: {migStratgy: none}", "flags.migStratgy: unknown key; did you mean migStrategy?"),
    ("flags: {plugin: {migStrategy: none}}", "flags.plugin.migStrategy: unknown key; it belongs at flags.migStr"),
    ("flags: {renameByDefault: true}", "it belongs at sharing.timeSlicing.renameByDefault"),
    ("sharing: {renameByDefault: true}", "it belongs at sharing.timeSlicing.renameByDefault"),
    ("flags: {failOnInitError: 'false'}", "'false' is not true or false; give true or false, without quotes"),
    ("flags: {migStrategy: 1}", "flags.migStrategy: 1 is not a text"),
    (
        'flags: {plugin: {containerDriverRoot: "/driver\\0root"}}',
        "flags.plugin.containerDriverRoot: '/driver\\x00root' has a NUL byte, which no path and no name can have",
    ),
    (
        "flags: {mpsRoot: run/mps}",
        "flags.mpsRoot: 'run/mps' is a relative path; give an absolute one, such as /run/mps",
    ),
    ("flags: {plugin: {containerDriverRoot: root}}", "flags.plugin.containerDriverRoot: 'root' is a relative path"),
    ("flags: {deviceDiscoveryStrategy: tegra}", "'tegra' is not allowed; give auto or nvml"),
    ("flags: {plugin: {deviceListStrategy: 'envvar,cdi-cri'}}", "'envvar,cdi-cri' is not allowed"),
    ("flags: {plugin: {deviceListStrategy: {a: b}}}", "is not a list of names"),
    ("flags: {gfd: {oneshoot: true}}", "flags.gfd.oneshoot: unknown key; did you mean oneshot?"),
    ("flags: {gfd: 1}", "flags.gfd: 1 is not a mapping"),
    ("resources: {gpus: [{name: gpu}]}", "resources.gpus[0].pattern: missing"),
    ("sharing: {mps: {resources: []}}", "sharing.mps.resources: missing"),
    ("imex: {channelIDs: [1]}", "imex.channelIDs: '1' is not allowed; give 0"),
    ("imex: {channelIDs: [0], require: true}", "imex.require: unknown key; did you mean required?"),
    ("sharing: {timeSlicing: {}}", "sharing.timeSlicing.resources: missing"),
    ("sharing: {timeSlicing: {resources: []}}", "sharing.timeSlicing.resources: missing"),
    (sliced("{name: gpu, replicas: 1}"), "sharing.timeSlicing.resources[0].replicas: 1 is not allowed; give 2"),
    (sliced("{name: gpu}"), "resources[0].replicas: missing"),
    (sliced("{name: gpu, replicas: '4'}"), "resources[0].replicas"),
    (sliced("{replicas: 4}"), "resources[0].name: missing"),
    (sliced("{name: gpu, replicas: 4, replica: 4}"), "resources[0].replica: unknown key; did you mean replicas?"),
    (sliced("{name: gpu, replicas: 4}, {name: nvidia.com/gpu, replicas: 2}"), "nvidia.com/gpu is listed twice"),
    ("a: 1\na: 2", "line 2: a: is given twice; keep one"),
    ("a: [", "not YAML"),
    ("a: !!python/object:os.system {}", "not YAML"),
    ("a: &x [1]\nb: [" + ", ".join(["*x"] * 17) + "]", "more than 16 YAML aliases"),
)
def test_what_cannot_be_is_refused_with_its_place_and_what_would_be_right(text: str, says: str) -> None:
    assert says in refused(text)


@cases(
    ("text", "field"),
    ("version: v2", "version"),
    ("flags: {migStrategy: some}", "flags.migStrategy"),
    ("flags: {plugin: {deviceListStrategies: envvar}}", "flags.plugin.deviceListStrategies"),
    ("flags: [a]", "flags"),
    ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", "sharing.timeSlicing.resources[0].replicas"),
    ("sharing: {timeSlicing: {resources: [{replicas: 2}]}}", "sharing.timeSlicing.resources[0].name"),
    ("sharing: {timeSlicing: {}, mps: {}}", "sharing"),
    ("resources: {gpus: [{pattern: 'a;b', name: x}]}", "resources.gpus[0].pattern"),
    ("resources: {gpus: [{pattern: '*', name: 'a b'}]}", "resources.gpus[0].name"),
    ("resources: {gpu: []}", "resources.gpu"),
    ("sharring: {}", "sharring"),
    ("[]", ""),
    ("a: [", ""),
)
def test_the_place_of_the_first_error_is_a_field(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode())
    assert caught.value.place == field


def test_a_file_that_is_too_large_or_not_text_is_refused_and_values_in_messages_are_short() -> None:
    assert "262144 are the most" in refused(b"#" * (1 << 18) + b"\n")
    assert "too many values" in refused("[" + "1," * 20_000 + "]")
    assert "nested more than 32 deep" in refused("[" * 40)
    assert "not YAML" in refused(b"\xff\xfe\x00")
    assert "nested more than 32 deep" in refused("[" * 20_000)
    assert len(refused("flags: {migStrategy: " + "x" * 10_000 + "}")) < 300


# --- all sources together ---------------------------------------------------------------------------------------------
def effective(
    *, arguments: tuple[str, ...] = (), text: bytes | None = None, spec: dict[str, Any] | None = None
) -> Effective:
    local = parse_flags(["--node-name=n1", *arguments], {})
    return resolve(local, parse(text) if text is not None else None, spec)


def test_a_section_of_spec_config_replaces_the_nodes_own_whole() -> None:
    spec = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
    own, both, none = (
        effective(text=SLICED),
        effective(text=SLICED, spec=spec),
        effective(text=SLICED, spec={"sharing": {}}),
    )
    assert own.sections.sharing.rename_by_default
    assert not both.sections.sharing.rename_by_default
    assert [each.replicas for each in both.sections.sharing.resources] == [2]
    assert none.sections.sharing.strategy == "none"


@cases(
    ("spec", "says"),
    ({"labels": {"mode": "All"}}, "spec.config.labels"),
    ({"sharing": INVALID_SHARING}, "spec.config.sharing: strategy memory needs memoryUnit"),
    ({"health": {"forgetMissingSeconds": 1}}, "spec.config.health.forgetMissingSeconds: 1 is not allowed"),
    ({"shring": {}}, "spec.config.shring: unknown key; did you mean sharing?"),
    ({"faults": {"event": False}}, "spec.config.faults.event: unknown key; Events are always written; leave it out"),
    ({"health": {"holdDownSeconds": -1}}, "spec.config.health.holdDownSeconds: -1 is not allowed"),
)
def test_a_spec_config_that_cannot_be_is_refused_by_name(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        effective(spec=spec)
    assert says in str(caught.value)


def test_what_is_in_effect_survives_the_state_file_and_what_that_lacks_is_as_without_flags() -> None:
    node = ("--gds-enabled", "--imex-channel-ids=0", "--dev-root=/host", "--mps-root=/m", "--cdi-annotation-prefix=x/")
    arguments = ("--resource-prefix=example.com", *node)
    now = effective(text=SLICED, arguments=arguments, spec={"health": {"holdDownSeconds": 7}})
    assert own_of(now.node).imex_channels == (0,)
    assert restored(to_saved(now)) == now
    # As in one of an earlier version. Two usual paths in the agent's image stand in its flags alone.
    saved = to_saved(effective()) | {"node": {}}
    assert restored(saved) == effective(arguments=("--driver-root-ctr-path=", "--nvidia-cdi-hook-path="))


def test_everything_that_nvidias_file_has_is_taken_and_what_is_of_no_use_here_is_named() -> None:
    config = parse(EVERYTHING)
    now = effective(text=EVERYTHING)
    assert config.unused == ("flags.useNodeFeatureAPI", "flags.gfd.oneshot", "flags.gfd.sleepInterval")
    assert now.sections.partitions.strategy == "mixed"
    assert now.sections.injection.device_list_strategies == ("envvar", "cdi-cri")
    assert (now.sections.injection.device_id_strategy, now.sections.injection.pass_device_specs) == ("index", True)
    assert [rule.name for rule in now.sections.resources.devices] == ["nvidia.com/h100", "nvidia.com/small"]
    assert own_of(now.node) == NvidiaSettings(
        driver_root="/run/nvidia/driver",
        dev_root="/host",
        features=("gdrcopy", "gds", "mofed"),
        imex_channels=(0,),
        imex_required=True,
        cdi_annotation_prefix="example.com/",
        cdi_hook_path="/usr/bin/nvidia-ctk",
        driver_root_here="/driver-root",
    )
    assert (now.node.driver_root_here, now.node.mps_root, now.node.packed) == ("/driver-root", "/run/nvidia/mps", True)


def test_nvidias_health_variables_are_the_nodes_own_health_which_a_policy_replaces() -> None:
    variables = {"DP_DISABLE_HEALTHCHECKS": "79,48", "DP_ENABLE_HEALTHCHECKS": "31"}
    own = resolve(parse_flags(["--standalone"], variables), None, None).sections.health
    assert [(rule.reasons, rule.state) for rule in own.rules] == [
        (("Xid31",), "Unhealthy"),
        (("Xid48", "Xid79"), "Ignored"),
    ]
    theirs = resolve(parse_flags(["--standalone"], variables), None, {"health": {"holdDownSeconds": 7}}).sections.health
    assert (theirs.rules, theirs.hold_down_seconds) == ((), 7)
    every = parse_flags(["--standalone"], {"DP_DISABLE_HEALTHCHECKS": "all"})
    assert [(rule.reasons, rule.state) for rule in resolve(every, None, None).sections.health.rules] == [
        (("Xid*",), "Ignored")
    ]
    assert resolve(every, None, {"health": {}}).sections.health.rules == ()


def test_a_saved_field_that_is_gone_costs_the_node_nothing_where_it_decides_no_ids() -> None:
    """As an earlier version wrote its defaults; a rule that had more than this version knows is about more devices."""
    saved = to_saved(effective())
    before = deepcopy(saved)
    before["sections"]["faults"] |= {"taint": {"effect": "None"}, "rules": [{"evict": {"mode": "Immediate"}}]}
    before["sections"]["health"]["rules"] = [{"reasons": ["Xid31"], "state": "Ignored", "match": {"near": "nic"}}]
    read = restored(before)
    assert read.has_shape_of(restored(saved))
    assert [rule.reasons for rule in read.sections.health.rules] == [("Xid31",)]
    before["sections"]["sharing"]["gone"] = 1
    found, why = understood(before)
    assert found is None
    assert "gone: unknown key" in why


@cases("saved", {}, {"sections": {}}, {"resourcePrefix": "a.b", "sections": {"x": 1}})
def test_a_saved_configuration_of_another_version_is_refused(saved: dict[str, Any]) -> None:
    found, why = understood(saved)
    assert found is None
    assert why.startswith("applied: saved configuration: ")
