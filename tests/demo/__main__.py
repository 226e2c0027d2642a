"""`make demo`: a cluster, our images from our manifests, the story, and nothing left behind.

    make demo                                     # its own cluster, on this machine; root, Linux
    KEEP=1 make demo                              # leaves it, and says how to look at it and how to end it
    KUBECONFIG=... REGISTRY=... make demo         # on a cluster of yours
    make demo-on CLUSTER=kind                     # on one of kind, k3d or minikube: no registry, no root
    PICTURE=docs/demo.svg make demo               # makes README's picture anew

Exit 0 when every step was reached; otherwise 1, with what was waited for and the last words of agent and operator.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from demo import first_sight
from demo.picture import svg
from demo.stage import Stage
from demo.story import NAMESPACE, Story
from support import cluster_provider, desk, installing
from support.cluster_provider import ClusterProvider
from support.kubectl import KubectlError, NotReached

LOG_LINES = 25
PROBLEM = (KubectlError, NotReached, OSError, AssertionError, KeyError)
# KeyError: a field that an object lacks is a state that was not reached


def main() -> int:
    stage = Stage()
    keep, picture = bool(os.environ.get("KEEP")), os.environ.get("PICTURE")
    options = argparse.ArgumentParser(prog="demo")
    options.add_argument("--on", metavar="CLUSTER", help="kind, k3d, minikube, kind-NAME or k3d-NAME")
    desk_name: str | None = options.parse_args().on
    if picture and not Path(picture).absolute().parent.is_dir():
        stage.failed(f"PICTURE={picture}: there is no such folder; give one that is there, such as docs/demo.svg")
        return 1
    # where kubectl finds the plugin
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        with ExitStack() as ending:
            provider = begin(stage, ending, desk_name=desk_name, keep=keep)
            story = Story(stage, provider.kubectl, provider.image, provider.nodes)
            if provider.own_rig is None and not keep:  # our own cluster goes as a whole
                ending.callback(story.forget)
                ending.callback(installing.uninstall, provider.kubectl)
            try:
                install(stage, provider)
                story.run()
                if picture:
                    Path(picture).write_text(svg(stage.pictured), encoding="utf-8")
                    stage.note(f"README's picture is made anew: {picture}")
            except PROBLEM:
                last_words(stage, provider)
                if keep:
                    left(stage, provider, desk_name)
                raise
            if not keep:
                stage.step("Taking it all down")
    except PROBLEM as error:
        stage.failed(str(error) if isinstance(error, NotReached) else f"{type(error).__name__}: {error}")
        return 1
    if keep:
        left(stage, provider, desk_name)
    else:
        stage.done("nothing is left behind")
    return 0


def left(stage: Stage, provider: ClusterProvider, desk_name: str | None) -> None:
    """Say how to look at the cluster that stays, and how to end it."""
    stage.step("Left as it is (KEEP=1). Look around:")
    stage.note(f"kubectl config use-context {desk.named(desk_name).context}" if desk_name else shell(provider))
    if provider.own_rig:
        stage.note("make cluster-down NAME=demo    # when you have seen enough")
    else:
        stage.note("to remove it: docs/operations.md#upgrade-restart-remove")


def begin(stage: Stage, ending: ExitStack, *, desk_name: str | None, keep: bool) -> ClusterProvider:
    """The cluster on which it plays."""
    if desk_name is not None:
        stage.step(f"Your cluster {desk_name}: our images on its nodes")
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        provider = desk.provider(desk_name, folder, stage.note)
    elif cluster_provider.is_users():
        stage.step("Your cluster")
        provider = cluster_provider.of_user()
    else:
        first_sight.build(stage)
        stage.step("A Kubernetes cluster: two nodes on this machine, real kubelets, real containers")
        provider = ending.enter_context(cluster_provider.of_rig("demo", keep=keep))
    stage.done("it is up")
    stage.shown("kubectl get nodes", provider.kubectl.run("get", "nodes"))
    if provider.own_rig:
        stage.note("The kubelets keep their default periods; a Node's numbers follow within 10 s.")
    return provider


def shell(provider: ClusterProvider) -> str:
    """The line with which a person's shell speaks to this cluster. A user's own cluster has kubectl in the PATH."""
    line = f"export KUBECONFIG={provider.kubectl.kubeconfig}"
    return f"{line} PATH={Path(provider.kubectl.binary).parent}:$PATH" if provider.own_rig else line


def install(stage: Stage, provider: ClusterProvider) -> None:
    stage.step("NodeDevices, from its manifests: kubectl apply -k manifests/overlays/demo")
    installing.install(provider.kubectl, provider.images)
    stage.done("an agent on every node, and two operators, of which one writes")
    what = ("get", "pods", "-n", installing.NAMESPACE)
    stage.shown(" ".join(("kubectl", *what)), provider.kubectl.run(*what))
    provider.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})


def last_words(stage: Stage, provider: ClusterProvider) -> None:
    """What the parts said last, for whoever has to find out why a step was not reached."""
    for what in (
        ("get", "nodedevices,devicepolicies", "-o", "wide"),
        ("get", "pods", "-A", "-o", "wide"),
        ("logs", "-n", installing.NAMESPACE, installing.OPERATOR, f"--tail={LOG_LINES}"),
        (
            "logs",
            "-n",
            installing.NAMESPACE,
            "-l",
            "app.kubernetes.io/component=agent",
            f"--tail={LOG_LINES}",
            "--prefix",
        ),
    ):
        try:
            said = provider.kubectl.run(*what)
        except KubectlError as error:
            said = str(error)
        stage.shown("kubectl " + " ".join(what), said)


if __name__ == "__main__":
    sys.exit(main())
