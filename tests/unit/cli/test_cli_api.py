"""The command line beside an API server: pages, watches, refusals, kubeconfig files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nodedevices_kube import kubeconfig
from nodedevices_kube.connection import _without_proxy
from nodedevices_kube.errors import KubeconfigError
from nodedevices_kubectl import commands
from nodedevices_kubectl.main import arranged
from support.cases import cases
from support.command_line import CommandLine, JsonObject, failed, gpu, node
from support.recorded_api import NODE_DEVICES, RecordedApi
from support.there import there

NODES_OF_A_FLEET = 5000


def test_a_fleet_of_five_thousand_nodes_is_read_in_ten_pages(api: RecordedApi, kubectl: CommandLine) -> None:
    one = json.dumps(node("NODE-NAME", *(gpu(index, "ml/train-0") for index in range(2))))
    for start in range(0, NODES_OF_A_FLEET, 500):
        items = ",".join(one.replace("NODE-NAME", f"n{number:04}") for number in range(start, start + 500))
        more = f', "continue": "{start // 500 + 1}"' if start + 500 < NODES_OF_A_FLEET else ""
        page = f'{{"kind": "NodeDevicesList", "metadata": {{"resourceVersion": "1"{more}}}, "items": [{items}]}}'
        api.pages.setdefault(NODE_DEVICES, []).append(page.encode())
    assert kubectl("nodes") == 0
    lines = kubectl.out.splitlines()
    assert len(lines) == 1 + NODES_OF_A_FLEET
    assert lines[-1].split() == ["n4999", "Ready", "NVIDIA-H100-80GB-HBM3", "2", "2", "2", "<none>", "5d3h"]
    assert len(api.requests) == 10
    assert all("limit=500" in path for _, path in api.requests)


def event(kind: str, item: JsonObject, version: str = "101") -> JsonObject:
    return {"type": kind, "object": {**item, "metadata": {**item["metadata"], "resourceVersion": version}}}


def test_a_list_that_expires_between_two_pages_is_begun_anew(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, node("n1"), node("n2"), node("n3"))
    api.page_size = 2
    api.expiries = 1
    assert kubectl("nodes", "-o", "name") == 0
    assert kubectl.out.split() == ["n1", "n2", "n3"]
    assert ["continue=" in path for _, path in api.requests] == [False, True, False, True]
    api.expiries = 9
    assert kubectl("nodes") == 1
    assert "the list has expired" in kubectl.err


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
FORBIDDEN = {"type": "ERROR", "object": {"kind": "Status", "code": 403, "message": "no longer allowed"}}


def test_a_watch_prints_what_changes_and_nothing_else(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, node("n1", gpu(0), gpu(1)))
    bad = node("n1", gpu(0), gpu(1, **failed()))
    beat = node("n1", gpu(0), gpu(1))
    beat["status"]["agent"]["heartbeatTime"] = "2026-11-23T12:00:00Z"
    api.events[NODE_DEVICES] = [[event("MODIFIED", beat), event("MODIFIED", bad), FORBIDDEN]]
    assert kubectl("devices", "-w", "--no-headers") == 1
    assert [line.split()[1] for line in kubectl.out.splitlines()] == ["gpu-0", "gpu-1", "gpu-1"]
    assert "no longer allowed" in kubectl.err


def test_a_watch_that_expires_or_ends_goes_on(api: RecordedApi, kubectl: CommandLine) -> None:
    """From where it was, or from a new list: which shows what came and what went meanwhile."""
    api.add(NODE_DEVICES, node("n1"), node("n2"))
    later = event("MODIFIED", node("n1", gpu(0)), "105")
    api.events[NODE_DEVICES] = [[later], [EXPIRED], [event("DELETED", node("n2"), "107"), FORBIDDEN]]
    assert kubectl("nodes", "-w", "-o", "name") == 1
    assert kubectl.out.split() == ["n1", "n2", "n1", "n1"]  # the list after the expiry shows n1 as it was at first
    assert "n2: it no longer exists" in kubectl.err
    watches = [path for _, path in api.requests if "watch=true" in path]
    assert ["resourceVersion=100" in path for path in watches] == [True, False, True]
    assert "resourceVersion=105" in watches[1]


def test_without_the_crds_it_says_that_nodedevices_is_not_installed(api: RecordedApi, kubectl: CommandLine) -> None:
    del api.objects[NODE_DEVICES]
    assert kubectl("nodes") == 1
    assert kubectl.err == (
        f"error: API server {api.url}: it has no nodedevices (nodedevices.io/v1alpha1)\n"
        "Is NodeDevices installed in the cluster of context here? docs/operations.md says how.\n"
    )


@pytest.mark.parametrize(
    ("refused", "command", "role"),
    [
        (NODE_DEVICES, ("nodes",), "nodedevices-view"),
        (f"PATCH {NODE_DEVICES}/n1", ("cordon", "n1/0"), "nodedevices-admin"),
    ],
)
def test_who_may_not_do_it_learns_which_role_it_takes(
    api: RecordedApi, kubectl: CommandLine, refused: str, command: tuple[str, ...], role: str
) -> None:
    """A RoleBinding to `view`, which owners of jobs have, gives no object without a namespace."""
    api.add(NODE_DEVICES, node("n1", gpu(0)))
    api.refusals[refused] = [403]
    assert kubectl(*command) == 1
    assert kubectl.err.endswith(f"kubectl create clusterrolebinding NAME --clusterrole={role} --user=USER\n")


def test_a_refusal_is_shown_in_the_api_servers_words(api: RecordedApi, kubectl: CommandLine) -> None:
    api.refusals[NODE_DEVICES] = [403, 401]
    assert kubectl("nodes") == 1
    assert f"{NODE_DEVICES} is refused" in kubectl.err
    assert kubectl("nodes") == 1
    assert "does not accept these credentials (context here)" in kubectl.err


def test_a_server_that_is_away_is_named(api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("nodes", "--context", "gone") == 1
    assert kubectl.err == "error: API server http://127.0.0.1:1: Connection refused\n"


def write(path: Path, **content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def named(name: str, kind: str, **content: object) -> JsonObject:
    return {"name": name, kind: content}


def test_of_several_kubeconfig_files_the_first_entry_of_a_name_counts(tmp_path: Path) -> None:
    here = {"clusters": [named("c", "cluster", server="https://one")], "current-context": "x"}
    first = write(tmp_path / "a", **here)
    second = write(
        tmp_path / "b",
        **{"current-context": "y"},
        clusters=[named("c", "cluster", server="https://two")],
        contexts=[named("x", "context", cluster="c", namespace="ml")],
    )
    found = there(kubeconfig.find(None, {"KUBECONFIG": f"{first}:{tmp_path / 'none'}:{second}"}))
    context = found.context("")
    assert (context.name, context.cluster.server, context.namespace) == ("x", "https://one", "ml")


def test_paths_in_a_kubeconfig_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("PEM")
    file = write(
        tmp_path / "config",
        contexts=[named("x", "context", cluster="c")],
        clusters=[named("c", "cluster", server="https://one", **{"certificate-authority": "ca.pem"})],
    )
    found = there(kubeconfig.find(str(file), {}))
    assert found.context("x").cluster.authority == b"PEM"


def user(*, cluster: JsonObject | None = None, **user: Any) -> JsonObject:
    """A kubeconfig of one context with these fields of its user and its cluster."""
    return {
        "current-context": "x",
        "contexts": [named("x", "context", cluster="c", user="u")],
        "clusters": [named("c", "cluster", server="https://one", **(cluster or {}))],
        "users": [{"name": "u", "user": user}],
    }


EXTRA: JsonObject = {"as": "jane", "as-user-extra": {"scopes": ["view"]}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "no current-context; give --context"),
        ({"current-context": "x"}, "current-context 'x': kubeconfig"),
        (
            {"current-context": "x", "contexts": [named("x", "context", cluster="c")]},
            "context x: cluster 'c': kubeconfig",
        ),
        (
            {
                "current-context": "x",
                "contexts": [named("x", "context", cluster="c")],
                "clusters": [named("c", "cluster", server="one:6443")],
            },
            "server 'one:6443': give https://HOST:PORT",
        ),
        (
            {
                "current-context": "x",
                "contexts": [named("x", "context", cluster="c", user="u")],
                "clusters": [named("c", "cluster", server="https://one")],
                "users": [{"name": "u", "user": {"auth-provider": {"name": "oidc"}}}],
            },
            "auth-provider: not possible here; use an exec plugin",
        ),
        (user(**EXTRA), "user u: as-user-extra: not possible here"),
        (user(exec={"command": "login", "policy": "x"}), "user u: exec: policy: not possible here"),
        (
            user(cluster={"certificate-authority-data": "UEVN", "insecure-skip-tls-verify": True}),
            "certificate-authority and insecure-skip-tls-verify: give one",
        ),
    ],
)
def test_a_kubeconfig_that_is_no_use_is_refused_with_the_reason(tmp_path: Path, content: JsonObject, said: str) -> None:
    file = write(tmp_path / "config", **content)
    with pytest.raises(KubeconfigError) as caught:
        kubeconfig.Kubeconfig([file]).context("")
    assert said in str(caught.value)


def test_no_kubeconfig_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="give --kubeconfig or set KUBECONFIG"):
        kubeconfig.find(None, {"HOME": str(tmp_path)})
    with pytest.raises(KubeconfigError, match="No such file"):
        kubeconfig.find(str(tmp_path / "none"), {})


@cases(
    ("host", "unless", "without"),
    ("api.example.com", "example.com", True),
    ("api.example.com", ".example.com,10.0.0.0/8", True),
    ("10.1.2.3", "10.0.0.0/8", True),
    ("api.example.com", "ample.com", False),
    ("api.example.com", "api.example.com:6443", True),
    ("api.example.com", "api.example.com:443", False),
    ("127.0.0.1", "", True),
)
def test_no_proxy_names_hosts_domains_and_networks(host: str, unless: str, without: bool) -> None:
    assert _without_proxy(host, {"NO_PROXY": unless}, 6443) is without


@cases(
    ("given", "means"),
    ([], ["nodes"]),
    (["-o", "wide"], ["nodes", "-o", "wide"]),
    (["--context", "x", "devices", "n1"], ["devices", "--context", "x", "n1"]),
    (["--context=x", "-w", "pods"], ["pods", "--context=x", "-w"]),
    (["devices", "-w"], ["devices", "-w"]),
    (["--help"], ["--help"]),
)
def test_options_may_come_before_the_command(given: list[str], means: list[str]) -> None:
    assert arranged(given) == means


def test_every_command_is_in_the_help_with_its_own_words() -> None:
    for name, words in commands.COMMANDS.items():
        assert commands.load(name).short_help == words, name
