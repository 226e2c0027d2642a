"""The command `tests/cluster/cluster`: a real Kubernetes on this machine. `--help` lists what it does."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cluster.rig import binaries, images, layout, rig, runs, versions
from cluster.rig.problem import Progress, RigError
from support.installing import kustomization


def folder_of(options: argparse.Namespace) -> Path:
    chosen = Path(options.state) if options.state else layout.default_folder(options.name)
    return layout.usable(chosen)


def environment(one: rig.Rig) -> str:
    """The line for the shell, with kubectl and, once it is built, helm."""
    helm = binaries.HELM.path
    folders = [one.kubectl.parent, *([helm.parent] if helm.exists() else [])]
    return f"export KUBECONFIG={one.layout.kubeconfig} PATH={':'.join(map(str, folders))}:$PATH"


def up(options: argparse.Namespace) -> None:
    progress = Progress()
    layout.check_nodes(options.nodes)  # before the images are built
    runs.remove_left(progress.say)
    archives = [Path(one).absolute() for one in options.load]
    if options.images:
        archives += images.local(progress)
    made = rig.up(options.name, folder_of(options), options.nodes, archives, progress)
    print(environment(made))
    if options.images and options.nodes:
        print(next_steps(made, options.name), file=sys.stderr)


def next_steps(made: rig.Rig, name: str) -> str:
    """What to type, after the line above, to see NodeDevices there; writes the kustomization that it applies."""
    folder = made.layout.folder / "install"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(kustomization(folder, images.references(), "demo"))
    first = made.layout.nodes[0].name
    hardware = 'echo "profile: h100 x 8" > /var/lib/nodedevices/simulated.yaml'
    return f"""
Kubernetes runs; NodeDevices is not installed on it yet. After the line above:
  kubectl apply -k {folder}
  tests/cluster/cluster node --name {name} {first} sh -c '{hardware}'
  kubectl wait --for=create nodedevices/{first} --timeout=60s
  kubectl get nodedevices
Or with helm, which `make cluster-tools` builds, and `tests/cluster/cluster env --name {name}` puts on the PATH:
  kubectl create namespace nodedevices-system
  kubectl label namespace nodedevices-system pod-security.kubernetes.io/enforce=privileged
  helm install nodedevices manifests/chart --namespace nodedevices-system {images_of_chart()} \\
    --set agent.flags.probe=simulated --set agent.flags.simulated='h100 x 8'
To end it: make cluster-down NAME={name}"""


def images_of_chart() -> str:
    """The chart's values for the images that the cluster has."""
    registry, _, last = images.references()["nodedevices-agent"].rpartition("/")
    return f"--set image.registry={registry} --set image.tag={last.rpartition(':')[2]}"


def down(options: argparse.Namespace) -> None:
    done = rig.down(folder_of(options))
    print(f"removed: {'; '.join(done)}" if done else f"nothing to remove: there is no cluster {options.name}")


def env(options: argparse.Namespace) -> None:
    print(environment(rig.open_rig(folder_of(options))))


def status(options: argparse.Namespace) -> None:
    print(rig.open_rig(folder_of(options)).status())


def node(options: argparse.Namespace) -> None:
    argv = rig.open_rig(folder_of(options)).runner(options.node).argv()
    sys.exit(subprocess.run([*argv, *options.command], check=False).returncode)


def load(options: argparse.Namespace) -> None:
    rig.open_rig(folder_of(options)).load([Path(one).absolute() for one in options.archive])


def kubelet_stop(options: argparse.Namespace) -> None:
    rig.open_rig(folder_of(options)).runner(options.node).stop_kubelet()


def kubelet_start(options: argparse.Namespace) -> None:
    rig.open_rig(folder_of(options)).runner(options.node).start_kubelet()


def apiserver_stop(options: argparse.Namespace) -> None:
    rig.open_rig(folder_of(options)).stop_apiserver()


def apiserver_start(options: argparse.Namespace) -> None:
    rig.open_rig(folder_of(options)).start_apiserver()


def build(_: argparse.Namespace) -> None:
    binaries.build(Progress())


def tools(_: argparse.Namespace) -> None:
    print("\n".join(str(binaries.build_tool(tool, Progress())) for tool in binaries.TOOLS))


def pin(options: argparse.Namespace) -> None:
    version = versions.pin(options.release, binaries.find_go(needed="1"))
    print("\n".join(map(str, version.files)))


def make_images(options: argparse.Namespace) -> None:
    if options.registry:
        made = images.push(options.registry, options.tag, Progress())
        print("\n".join(made.values()))
    else:
        progress = Progress()
        archives = images.local(progress)
        rig.seed(archives, binaries.need(), progress)
        print("\n".join(map(str, archives)))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="tests/cluster/cluster", description=__doc__)
    commands = top.add_subparsers(dest="command_name", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about, description=about)
        one.set_defaults(run=run)
        if name not in {"build", "images", "pin", "tools"}:
            one.add_argument("--name", default="default", help="which cluster; several can be up side by side")
            one.add_argument("--state", help="its folder (default: below /var/tmp, or $NODEDEVICES_STATE)")
        return one

    begin = command("up", up, "bring a cluster up and print how to use it")
    begin.add_argument("--nodes", type=int, default=2, help="0 is an API server alone, which needs no root (default 2)")
    begin.add_argument("--load", action="append", default=[], metavar="IMAGE.tar", help="images to import (repeat)")
    begin.add_argument("--images", action="store_true", help="build our images and import them")
    command("down", down, "remove every trace of a cluster; no error when there is none")
    command("env", env, "print the line for the shell that makes kubectl use it")
    command("status", status, "what of it runs")
    inside = command("node", node, "run a command in a node's namespaces")
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    command("load", load, "import images into every node").add_argument("archive", nargs="+", metavar="IMAGE.tar")
    for name, run in (("kubelet-stop", kubelet_stop), ("kubelet-start", kubelet_start)):
        command(name, run, f"{name.removeprefix('kubelet-')} the kubelet of a node").add_argument("node")
    command("apiserver-stop", apiserver_stop, "kill the API server; its data stay")
    command("apiserver-start", apiserver_start, "start the API server again and wait until it is ready")
    command("build", build, "build the binaries where the cache lacks them")
    names = " and ".join(tool.name for tool in binaries.TOOLS)
    command(
        "tools", tools, f"build {names} where the cache lacks them, and print where they are: for the chart's tests"
    )
    about = "write the module files of a Kubernetes release, for KUBERNETES=1.34 to choose"
    command("pin", pin, about).add_argument("release", help="like 1.34.4")
    pictures = command("images", make_images, "build our images: as archives for this rig, or for a registry")
    pictures.add_argument("--registry", default="", help="build with docker, podman or buildah and push there")
    pictures.add_argument("--tag", default="0.1.0", help="for the registry (default %(default)s)")
    return top


def main() -> None:
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a half-made cluster is taken back
    try:
        options.run(options)
    except RigError as error:
        sys.exit(f"cluster: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    os.umask(0o022)
    main()
