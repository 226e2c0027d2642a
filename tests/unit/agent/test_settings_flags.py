"""Flags and variables: every mistake is named with what would be right, and the stronger source wins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nodedevices_common.address import Address
from nodedevices_common.options import check
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.settings.options import OPTIONS, variables
from support.cases import cases

HERE = {"NODE_NAME": "n1"}


def refused(arguments: list[str], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(arguments, HERE if environment is None else environment)
    return str(caught.value)


def test_the_defaults_are_those_of_a_daemonset() -> None:
    local = parse([], HERE)
    assert (local.node_name, local.given.get("probe"), local.standalone) == ("n1", None, False)
    assert local.kubelet_socket == "/var/lib/kubelet/device-plugins/kubelet.sock"
    assert local.state_file == "/var/lib/kubelet/device-plugins/nodedevices-state.json"
    assert local.pod_resources_socket == "/var/lib/kubelet/pod-resources/kubelet.sock"
    assert (local.http_address, local.health_address) == (Address("", 9735), Address("", 9737))
    assert local.given == {}


def test_a_flag_is_stronger_than_its_variable_also_for_who_serves_the_kubelet() -> None:
    assert parse(["--log-level=debug"], {**HERE, "NODEDEVICES_LOG_LEVEL": "error"}).log_level == "debug"
    assert parse([], {**HERE, "NODEDEVICES_LOG_LEVEL": "error"}).log_level == "error"
    assert parse([], HERE).serving_mode == "Serve"
    assert parse([], {**HERE, "NODEDEVICES_SERVING_MODE": "Observe"}).serving_mode == "Observe"
    assert "give Serve or Observe" in refused(["--serving-mode=off"])
    assert "did you mean Observe?" in refused(["--serving-mode=observed"])


@cases("arguments", ["--device-list-strategy=envvar"], ["--device-list-strategy", "envvar"])
def test_nvidias_flags_are_taken_in_both_forms(arguments: list[str]) -> None:
    assert parse(arguments, HERE).given == {"device-list-strategy": ("envvar",)}


@cases("name", *[each for option in OPTIONS if option.flag for each in (option.name, *option.aliases)])
def test_one_dash_is_as_good_as_two(name: str) -> None:
    """Go's flag package takes both, and so do the arguments of a DaemonSet written for NVIDIA's plugin."""

    def outcome(*arguments: str) -> Local | tuple[str, ...]:
        try:
            return parse(arguments, HERE)
        except ConfigError as error:
            return error.problems

    assert outcome(f"-{name}=x") == outcome(f"--{name}=x")
    assert outcome(f"-{name}", "x") == outcome(f"--{name}", "x")
    assert "unknown flag" not in str(outcome(f"-{name}=x"))


def test_flags_with_one_dash_are_at_work() -> None:
    arguments = ["-mig-strategy=single", "-gds-enabled", "-device-list-strategy", "envvar", "-nvidia-driver-root=/x"]
    assert parse(arguments, HERE).given == {
        "mig-strategy": "single",
        "gds-enabled": True,
        "device-list-strategy": ("envvar",),
        "driver-root": "/x",
    }
    assert "--mig-strategi: unknown flag; did you mean --mig-strategy?" in refused(["-mig-strategi=single"])


def test_nvidias_variables_are_taken_and_paths_follow_the_kubelets_directory() -> None:
    local = parse(["--nvidia-driver-root=/"], {**HERE, "PASS_DEVICE_SPECS": "false", "MIG_STRATEGY": "none"})
    assert local.given == {"driver-root": "/", "pass-device-specs": False, "mig-strategy": "none"}
    local = parse(["--kubelet-dir=/x/", "--kubeconfig=kubeconfig", "--cdi-spec-dirs=/etc/cdi,/var/run/cdi"], HERE)
    assert (local.kubelet_socket, local.pod_resources_socket) == (
        "/x/device-plugins/kubelet.sock",
        "/x/pod-resources/kubelet.sock",
    )
    assert local.state_file == "/x/device-plugins/nodedevices-state.json"
    assert local.allocations_dir == "/x/device-plugins/nodedevices-allocations"


@cases(
    ("text", "address"),
    (":0", Address(host="", port=0)),
    ("127.0.0.1:99", Address(host="127.0.0.1", port=99)),
    ("[::1]:99", Address(host="::1", port=99)),
    ("off", None),
)
def test_an_address_is_a_host_and_a_port_or_off(text: str, address: Address | None) -> None:
    assert parse([f"--http-address={text}"], HERE).http_address == address


def test_a_value_that_is_wrong_is_named_where_it_was_given_beside_all_others() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--http-address=x", "--resource-prefix=gpu"], HERE | {"NODEDEVICES_HEALTH_ADDRESS": "y"})
    assert [each.partition(":")[0] for each in caught.value.problems] == [
        "--resource-prefix",
        "--http-address",
        "environment variable NODEDEVICES_HEALTH_ADDRESS",
    ]
    assert caught.value.problems[2].endswith("; or off")


@cases(
    ("arguments", "says"),
    (["--nod-name=x"], "--nod-name: unknown flag; did you mean --node-name?"),
    (["serve"], "'serve'; every argument is a flag (see --help)"),
    (["--log-level=loud"], "--log-level: 'loud' is not allowed"),
    (["--mig-strategy=singel"], "--mig-strategy: 'singel' is not allowed; did you mean single?"),
    (["--device-list-strategy=envvar,cdi"], "--device-list-strategy: 'cdi' is not allowed; did you mean cdi-cri?"),
    (["--device-discovery-strategy=tegra"], "'tegra' is not allowed; give auto or nvml"),
    (["--shared-devices-allocation-policy=spread"], "'spread' is not allowed; give distributed or packed"),
    (["--gds-enabled=yes"], "--gds-enabled: 'yes' is not true or false; give true or false"),
    (["--imex-channel-ids=1"], "--imex-channel-ids: '1' is not allowed; give 0"),
    (["--node-name=Node_1"], "--node-name: 'Node_1' is not the name of a Node"),
    (["--resource-prefix=gpu"], "--resource-prefix: 'gpu' is not a domain such as nvidia.com"),
    (["--resource-prefix=x.kubernetes.io"], "--resource-prefix: 'x.kubernetes.io' is not allowed: no kubelet"),
    (["--http-address=9735"], "--http-address: '9735' is not host:port"),
    (["--http-address=:99999"], "--http-address: ':99999' is not host:port"),
    (["--pod-name=a-1"], "--pod-name: unknown flag; give environment variable POD_NAME"),
    (["--simulated-file=/x"], "--simulated-file: unknown flag; give --simulated"),
    (["--add-probe=nic"], "--add-probe: unknown flag; give --probe"),
    (["--kubelet-socket="], "--kubelet-socket: empty; to register nothing, give --serving-mode=Observe"),
    (["--memory-unit=GiB"], "--memory-unit: unknown flag"),
    (["--probe=simulated"], "needs --simulated, a file of devices or a profile"),
    (["--probe=simulated", "--simulated=h101"], "--simulated: taken for a profile, as a file begins with /"),
    (["--simulated=x"], "--simulated: only valid with --probe simulated"),
    (
        ["--probe=simulated", "--simulated=a.yaml"],
        "--simulated: 'a.yaml' is a relative path; give an absolute one, such as /etc/nodedevices/a.yaml",
    ),
    (["--kubelet-dir="], "--kubelet-dir: empty; give an absolute path, such as /var/lib/kubelet"),
    (["--kubelet-dir=./kubelet"], "--kubelet-dir: './kubelet' is a relative path; give an absolute one"),
    (["--cdi-spec-dirs=/etc/cdi,cdi"], "--cdi-spec-dirs: 'cdi' is a relative path"),
    (["--cdi-spec-dirs="], "--cdi-spec-dirs: empty; give absolute paths, such as /etc/cdi,/var/run/cdi"),
    (["--mps-root=run/nvidia/mps"], "--mps-root: 'run/nvidia/mps' is a relative path"),
    (["--devices-dir=devices"], "--devices-dir: 'devices' is a relative path"),
    (["--node-name"], "argument --node-name: expected one argument"),
)
def test_what_cannot_be_is_refused_with_what_would_be_right(arguments: list[str], says: str) -> None:
    assert says in refused(arguments)


@cases("name", *[each.name for each in OPTIONS if re.search("-(dirs?|file|root|socket|hook-path)$", each.name)])
def test_a_path_that_is_relative_is_refused_and_the_example_is_absolute(name: str) -> None:
    said = refused([f"--{name}=here"])
    assert re.search(f"--{name}: '?here'?(:| is) .* absolute", said)
    assert all(example.startswith("/") for example in re.findall(r"such as (\S+)", said))


@cases(
    ("variables", "says"),
    ({"POD_NAME": "a-1"}, "environment variable POD_NAMESPACE: missing, with POD_NAME 'a-1'; give both"),
    ({"POD_NAMESPACE": "ml"}, "environment variable POD_NAME: missing, with POD_NAMESPACE 'ml'; give both"),
    ({"NODEDEVICES_SIMULATED_FILE": "/x"}, "_FILE: unknown setting; give NODEDEVICES_SIMULATED"),
)
def test_a_variable_that_cannot_be_is_refused(variables: dict[str, str], says: str) -> None:
    assert says in refused([], HERE | variables)


def test_a_missing_node_name_and_a_variable_of_ours_that_does_not_exist_are_reported() -> None:
    assert "--node-name: missing; set NODE_NAME from spec.nodeName" in refused([], {})
    assert parse(["--standalone"], {}).node_name
    assert "did you mean NODEDEVICES_LOG_LEVEL?" in refused([], {**HERE, "NODEDEVICES_LOG_LEVLE": "debug"})
    links = {
        "NODEDEVICES_OPERATOR_SERVICE_HOST": "10.96.0.7",
        "NODEDEVICES_OPERATOR_SERVICE_PORT_METRICS": "8080",
        "NODEDEVICES_OPERATOR_PORT": "tcp://10.96.0.7:8080",
        "NODEDEVICES_OPERATOR_PORT_8080_TCP_ADDR": "10.96.0.7",
    }
    assert isinstance(parse([], {**HERE, **links}), Local)


@pytest.mark.parametrize("text", ["--help", "-help", "-h", "--version", "-version"])
def test_help_and_version_are_printed_and_end_it_well(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([text], {})
    assert caught.value.code == 0
    assert "nodedevices-agent" in capsys.readouterr().out


def test_every_default_is_an_allowed_value_and_no_variable_has_two_meanings() -> None:
    for option in OPTIONS:
        if option.default and not isinstance(option.default, bool):
            check(option, option.default, option.name)
    variables = [variable for option in OPTIONS for variable in option.variables]
    assert len(variables) == len(set(variables))


def test_every_variable_without_a_flag_is_in_the_pages_table() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "flags.md").read_text()
    table = page.partition("### Variables without a flag")[2].partition("\n## ")[0]
    alone = {name for option in OPTIONS if not option.flag for name in option.variables} | set(variables())
    assert [name for name in alone if f"`{name}`" not in table] == []
