"""What the chart renders, hooks too, is what a real API server takes; what is the default is held by unit/chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml
from support import helm
from support.kubectl import Kubectl

pytestmark = pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")


def namespace(name: str, **labels: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.mark.usefixtures("kinds_of_others")
def test_every_object_of_many_values_and_every_hook_is_taken_without_an_unknown_field(kubectl: Kubectl) -> None:
    account = {"name": "nodedevices-operator", "namespace": "nodedevices-operator"}  # without it no Pod is taken
    kubectl.apply(namespace(helm.NAMESPACE), namespace("nodedevices-operator"))
    kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    done = helm.template(helm.CUSTOM)
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout) if one]
    said = kubectl.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=done.stdout)
    assert len(said.splitlines()) == len(kinds)
    assert {"Pod", "Job", "ResourceQuota"} <= set(kinds), "the check, the clean-up, the quota"
    assert {"PodMonitor", "PrometheusRule"} <= set(kinds)


def test_a_namespace_that_takes_no_host_path_is_refused_with_the_command_that_mends_it(kubectl: Kubectl) -> None:
    level = {"pod-security.kubernetes.io/enforce": "baseline"}
    kubectl.apply(namespace("gpu-tools", **level))
    done = helm.run(
        *("install", "nodedevices", str(helm.CHART), "--namespace", "gpu-tools", "--dry-run=server"),
        kubeconfig=kubectl.kubeconfig,
    )
    assert done.returncode != 0
    assert "namespace gpu-tools enforces Pod Security baseline" in done.stderr
    assert "kubectl label namespace gpu-tools pod-security.kubernetes.io/enforce=privileged --overwrite" in done.stderr


def would_install(kubectl: Kubectl, release: str, *values: str) -> str:
    """What helm says against it; empty: nothing."""
    arguments = (
        "install",
        "nodedevices",
        str(helm.CHART),
        "--namespace",
        release,
        "--dry-run=server",
        "--take-ownership",
    )
    done = helm.run(*arguments, *(f"--set={each}" for each in values), kubeconfig=kubectl.kubeconfig)
    return done.stderr if done.returncode else ""


def test_an_operator_is_not_moved_away_from_the_record_of_what_was_done(kubectl: Kubectl) -> None:
    kubectl.apply(namespace("gpu-moved"))
    policy = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "DevicePolicy", "metadata": {"name": "acted"}}
    kubectl.apply({**policy, "spec": {"nodeSelector": {}, "serving": {"mode": "Observe"}}})
    said = '{"status": {"actionsRecord": "gpu-before/nodedevices-actions"}}'
    kubectl.run("patch", "devicepolicy", "acted", "--subresource=status", "--type=merge", "-p", said)
    try:
        refused = would_install(kubectl, "gpu-moved")
        assert "recorded in ConfigMap nodedevices-actions of namespace gpu-before" in refused
        assert "kubectl -n gpu-before get configmap nodedevices-actions -o json | jq" in refused
        assert "RecordMissing" not in would_install(kubectl, "gpu-moved", *own_namespace("gpu-before"))
        kubectl.run("create", "configmap", "nodedevices-actions", "-n", "gpu-moved")
        assert "RecordMissing" not in would_install(kubectl, "gpu-moved")
    finally:
        kubectl.run("delete", "devicepolicy", "acted")
        kubectl.delete("configmap", "nodedevices-actions", namespace="gpu-moved")  # others look where a record is


def own_namespace(name: str) -> tuple[str, str]:
    return "components.operatorNamespace.enabled=true", f"components.operatorNamespace.name={name}"


def test_a_namespace_of_others_does_not_become_the_operators(kubectl: Kubectl) -> None:
    kubectl.apply(namespace("gpu-owner"), namespace("gpu-monitoring"), namespace("gpu-empty"))
    account = {"name": "default", "namespace": "gpu-monitoring"}  # without it no Pod is taken
    kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    spec = {"containers": [{"name": "grafana", "image": "grafana"}]}
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {**account, "name": "grafana"}, "spec": spec})
    assert "namespace gpu-monitoring belongs to others" in would_install(
        kubectl, "gpu-owner", *own_namespace("gpu-monitoring")
    )
    assert "belongs to others" not in would_install(kubectl, "gpu-owner", *own_namespace("gpu-empty"))
    kubectl.run("annotate", "namespace", "gpu-empty", "meta.helm.sh/release-name=theirs")
    assert "namespace gpu-empty belongs to others" in would_install(kubectl, "gpu-owner", *own_namespace("gpu-empty"))


@pytest.fixture
def release(kubectl: Kubectl) -> Iterator[Callable[..., None]]:
    """Runs a command of helm on a release; afterwards no admission policy of it is in effect."""
    kubectl.apply(namespace("gpu-release"))

    def run(command: str, *arguments: str) -> None:
        flags = ("--namespace", "gpu-release")
        done = helm.run(command, "nodedevices", *arguments, *flags, kubeconfig=kubectl.kubeconfig)
        assert done.returncode == 0, done.stderr

    yield run
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    kubectl.run("delete", kinds, "-l", "app.kubernetes.io/part-of=nodedevices")


@pytest.mark.long
def test_a_release_takes_over_what_kubectl_made_and_leaves_crds_and_policies_when_it_goes(
    kubectl: Kubectl, release: Callable[..., None]
) -> None:
    """By an API server alone, whose CRDs and rights are kubectl's. What moves pods is for a real cluster."""

    def wave() -> object:
        agent = kubectl.get("daemonset", "nodedevices-agent", "gpu-release")
        assert agent is not None
        return agent["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]

    chart = str(helm.CHART)
    rights = helm.CHART.parent / "base" / "agent" / "rbac.yaml"
    theirs = (
        rights.read_text().replace("nodedevices-system", "gpu-release").replace("[list, watch,", "[get, list, watch,")
    )
    kubectl.run("apply", "-f", "-", stdin=theirs)
    release("install", chart, "--take-ownership", "--force-conflicts")
    policy = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "DevicePolicy", "metadata": {"name": "kept"}}
    kubectl.apply({**policy, "spec": {"nodeSelector": {}, "serving": {"mode": "Observe"}}})
    assert wave() == 1
    release("upgrade", chart, "--set", "agent.updateStrategy.maxUnavailable=10%")
    assert wave() == "10%"
    release("rollback", "1")
    assert wave() == 1
    release("uninstall", "--no-hooks")
    assert kubectl.get("daemonset", "nodedevices-agent", "gpu-release") is None
    assert kubectl.get("devicepolicy", "kept") is not None
