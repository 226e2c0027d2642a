"""docs/tutorials, followed to the letter beside a real API server and the real operator: each shell block is run, and
prints what the page says, but for ages and times. No node is there: the test plays kubelets and agents."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support import access, helm
from support.apiserver import ApiServer
from support.fleet import FleetNode, stamp
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import OperatorProcess, service_account
from support.pagesteps import Page

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "tutorials"
XID31 = {"code": "Xid31", "message": "MMU fault: an address that is wrong", "count": 2}
XID79 = {"message": "GPU has fallen off the bus (XID 79); reset its bus", "recoveryAction": "ResetBus"}
VARYING = [
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b(?:\d+[dhms]){1,2}\b"), "AGE"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"[ \t]+"), " "),
]

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.long,
    pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one"),
]


@dataclass
class Tutorial:
    """A cluster where NodeDevices was installed by the first page, and runs on two nodes; one job."""

    kubectl: Kubectl
    folder: Path
    environment: dict[str, str]

    def follow(self, page: Page, step: str) -> None:
        printed = page.run(step, folder=self.folder, environment=self.environment)
        if expected := page.outputs.get(step):
            assert constant(printed) == constant(expected)


def constant(text: str) -> str:
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


PLATFORM = Page.read(PAGES / "platform-engineer.md")
OWNER = (PAGES / "owner-of-a-job.md").read_text()


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tutorial]:
    folder = tmp_path_factory.mktemp("tutorials")
    (folder / "manifests").symlink_to(ROOT / "manifests")
    with ApiServer(folder / "apiserver") as server:
        kubectl = Kubectl(server.kubeconfig, str(server.kubectl))
        binary = helm.helm()
        assert binary is not None
        places = [Path(sys.executable).parent, server.kubectl.parent, Path(binary).parent, os.environ["PATH"]]
        environment = {"KUBECONFIG": str(server.kubeconfig), "PATH": os.pathsep.join(map(str, places))}
        tutorial = Tutorial(kubectl, folder, environment)
        tutorial.follow(PLATFORM, "2")
        with OperatorProcess(folder, service_account(kubectl, folder), leader_elect=True):
            yield tutorial


@pytest.fixture(scope="module")
def n1(tutorial: Tutorial) -> FleetNode:
    """Four GPUs, of which the pod ml/train-0 holds three; n2 has two."""
    kubectl = tutorial.kubectl
    for kind, name in (("Namespace", {"name": "ml"}), ("ServiceAccount", {"name": "default", "namespace": "ml"})):
        kubectl.apply({"apiVersion": "v1", "kind": kind, "metadata": name})
    nodes = [FleetNode(kubectl, name, gpus=gpus) for name, gpus in (("n1", 4), ("n2", 2))]
    for node in nodes:
        node.attributes = {"vendor": "nvidia", "productName": "NVIDIA H100 80GB HBM3"}
        node.model = "NVIDIA-H100-80GB-HBM3"
        node.create({})
    limits = {"nvidia.com/gpu": "3"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    spec = {"nodeName": "n1", "containers": [container], "automountServiceAccountToken": False}
    kubectl.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0", "namespace": "ml"}, "spec": spec}
    )
    running = {"status": {"phase": "Running", "startTime": stamp()}}
    kubectl.patch("pod", "train-0", running, namespace="ml", manager="kubelet", subresource="status")
    holder = {"namespace": "ml", "pod": "train-0", "container": "main", "resource": "nvidia.com/gpu"}
    nodes[0].holders = {index: [{**holder, "since": stamp(micro=True)}] for index in range(3)}
    for node in nodes:
        wait_until("a configuration", lambda n=node: n.object["spec"].get("configHash"))  # type: ignore[misc]
        node.report(applied_hash=node.object["spec"]["configHash"])
    return nodes[0]


@pytest.mark.parametrize("step", [step for step in PLATFORM.scripts if step not in {"1", "2"}])
def test_the_platform_engineers_page_prints_what_it_says(tutorial: Tutorial, n1: FleetNode, step: str) -> None:
    tutorial.follow(PLATFORM, step)


@pytest.fixture
def owner(tutorial: Tutorial, n1: FleetNode) -> Tutorial:
    """Who may edit in the namespace ml, and what the page of a job's owner asks for, and no more.

    No controller aggregates roles here, so the parts of `edit` and `view` are bound by their own names.
    """
    run = tutorial.kubectl.run
    run("create", "serviceaccount", "owner", "-n", "ml")
    for part in ("view", "edit"):
        role = f"--clusterrole=system:aggregate-to-{part}"
        run("create", "rolebinding", f"owner-{part}", "-n", "ml", role, "--serviceaccount=ml:owner")
    [command] = re.findall(r"^ +kubectl (create clusterrolebinding .*)$", OWNER, re.MULTILINE)
    run(*command.replace("GROUP", "system:serviceaccounts:ml").split())
    token = run("create", "token", "owner", "-n", "ml").strip()
    own = access.kubeconfig(tutorial.kubectl.kubeconfig, tutorial.folder / "owner", token)
    return replace(tutorial, environment={**tutorial.environment, "KUBECONFIG": str(own)})


def test_the_page_of_a_jobs_owner_prints_what_it_says_with_the_rights_that_it_names(
    tutorial: Tutorial, owner: Tutorial, n1: FleetNode
) -> None:
    n1.more[0] = {"notices": [{**XID31, "since": stamp(), "time": stamp()}]}
    n1.fail(2, **XID79)
    marked = '{.status.conditions[?(@.type=="nodedevices.io/DeviceHealthy")].status}'
    get = ("get", "pod", "train-0", "-n", "ml", "-o", f"jsonpath={marked}")
    wait_until("the pod is marked", lambda: tutorial.kubectl.run(*get) == "False")
    told = "involvedObject.name=train-0,reason=DeviceFault"
    wait_until("the pod has its Event", lambda: tutorial.kubectl.items("events", "ml", fields=told))
    page = Page.read(PAGES / "owner-of-a-job.md")
    for step in [each for each in page.scripts if each != "1"]:
        owner.follow(page, step)


def test_the_page_of_a_controllers_author_prints_what_it_says(tutorial: Tutorial, n1: FleetNode) -> None:
    n1.fail(2, **XID79)
    page = Page.read(PAGES / "controller-author.md")
    tutorial.environment["SECONDS_TO_WATCH"] = "1"
    for step in [each for each in page.scripts if each != "1"]:
        tutorial.follow(page, step)
