"""The programs that the cluster runs, built once from Go modules and kept outside the repository.

Kubernetes and etcd are one binary of the module in `tests/cluster/kube`; containerd and the CNI plugins come by
`go install`; runc is Debian's (built from modules it has no seccomp). They are kept in a folder named by the hash of
everything that decides what they are, so that another version has another folder: one that was built once is there when
it is chosen again, and for a second clone. What only the tests of the chart need has folders of its own: helm, and Lua
as Argo CD has it for health checks.

A build goes into a folder beside it and takes its name only when it is complete: one that was killed leaves nothing
that looks finished. Two builds at once wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.rig import versions
from cluster.rig.problem import Progress, RigError

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
CONTAINERD = "v2.3.4"  # from 1.36 on Kubernetes needs containerd 2; those before are content with it
CNI = "v1.9.0"
CONTAINERD_PROGRAMS = ("containerd", "ctr", "containerd-shim-runc-v2")
CNI_PROGRAMS = ("main/bridge", "main/loopback", "ipam/host-local")
RECIPE = "1"  # to be changed with the commands below
TELL_SECONDS = 15
TIDY_SECONDS = 5


@dataclass(frozen=True)
class Tool:
    """One program of a Go module."""

    name: str
    package: str
    version: str
    go: str  # the oldest that builds it

    @property
    def path(self) -> Path:
        """Where this version of it is, or will be."""
        return cache() / "bin" / f"{self.name}-{self.version}-{os.uname().machine}" / self.name


HELM = Tool("helm", "helm.sh/helm/v4/cmd/helm", "v4.3.1", "1.26.0")
LUA = Tool("glua", "github.com/yuin/gopher-lua/cmd/glua", "v1.1.1", "1.17.0")
TOOLS = (HELM, LUA)


@dataclass(frozen=True)
class Binaries:
    folder: Path

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def cni(self) -> Path:
        return self.folder / "cni"


def cache() -> Path:
    """Where builds are kept, for this and every other clone."""
    chosen = os.environ.get("NODEDEVICES_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodedevices"


def folder() -> Path:
    """Where the binaries of this very recipe and the chosen Kubernetes are, or will be."""
    digest = hashlib.sha256()
    for path in (*versions.chosen().files, versions.MODULE / "main.go"):
        digest.update(path.read_bytes())
    digest.update(f"{CONTAINERD} {CNI} {RECIPE} {os.uname().machine}".encode())
    return cache() / "bin" / digest.hexdigest()[:16]


def find() -> Binaries | None:
    """The binaries, if they were built."""
    place = folder()
    return Binaries(place) if place.is_dir() else None


def need() -> Binaries:
    """The binaries; RigError when nobody built them yet."""
    found = find()
    if found is None:
        version = versions.chosen()
        how = f"make cluster-tools KUBERNETES={version.minor}"
        raise RigError(f"Kubernetes {version.release} is not built yet (one time, some minutes): {how}")
    return found


def build(progress: Progress) -> Binaries:
    """The binaries, built when the cache lacks them."""
    place = folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _build(place, progress)
    return Binaries(place)


def _build(place: Path, progress: Progress) -> None:
    go = find_go()
    new = place.with_name(place.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "cni").mkdir(parents=True)
    log = place.parent / "build.log"
    log.write_bytes(b"")
    version = versions.chosen().release
    progress.say(f"building Kubernetes {version}, containerd {CONTAINERD} and CNI plugins with {go}, one time")
    command, environment = go_build(".", new / "kube", stamp(version))
    run(f"Kubernetes {version}", command, log=log, progress=progress, cwd=versions.MODULE, environment=environment)
    for name in COMPONENTS:
        (new / name).symlink_to("kube")
    environment["GOFLAGS"] = ""
    for title, target, packages in (
        (
            f"containerd {CONTAINERD}",
            new,
            [f"github.com/containerd/containerd/v2/cmd/{one}@{CONTAINERD}" for one in CONTAINERD_PROGRAMS],
        ),
        (
            f"CNI plugins {CNI}",
            new / "cni",
            [f"github.com/containernetworking/plugins/plugins/{one}@{CNI}" for one in CNI_PROGRAMS],
        ),
    ):
        command = [go, "install", "-v", "-trimpath", "-ldflags", "-s -w", *packages]
        environment["GOBIN"] = str(target)
        run(title, command, log=log, progress=progress, cwd=new, environment=environment)
    new.rename(place)
    progress.say(f"built: {place}")


def build_tool(tool: Tool, progress: Progress) -> Path:
    """The program, built when the cache lacks it."""
    place = tool.path.parent
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{tool.name}.lock").open("w") as lock:  # of its own: the build of Kubernetes takes minutes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tool.path.is_file():
            new = place.with_name(f"{place.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            go = find_go(tool.go)
            progress.say(f"building {tool.name} {tool.version} with {go}, one time")
            environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOBIN": str(new)}
            command = [go, "install", "-v", "-trimpath", "-ldflags", "-s -w", f"{tool.package}@{tool.version}"]
            log = place.parent / f"build-{tool.name}.log"
            title = f"{tool.name} {tool.version}"
            run(title, command, log=log, progress=progress, cwd=new, environment=environment)
            new.rename(place)
    return tool.path


def go_build(package: str, output: Path, flags: str = "-s -w") -> tuple[list[str], dict[str, str]]:
    """The command, and its environment, that builds a package of the module with the chosen Kubernetes."""
    modules, _ = versions.chosen().files
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    command = [find_go(), "build", "-v", "-trimpath", f"-modfile={modules}", "-ldflags", flags]
    return [*command, "-o", str(output), package], environment


def stamp(version: str) -> str:
    """Linker flags; without the version the parts call themselves v0.0.0-master and refuse to work together."""
    major, minor, _ = version.removeprefix("v").split(".")
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "modules",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(["-s -w", *(f"-X {one}.{key}={value}" for one in packages for key, value in facts.items())])


def find_go(needed: str = "") -> str:
    """A Go as new as this, or as the chosen Kubernetes needs: the system's, or what `make cluster-tools` installed."""
    needed = needed or versions.chosen().go
    local = versions.MODULE.parents[2] / ".tools" / "bin" / "go"
    for candidate in (shutil.which("go"), str(local) if local.exists() else None):
        if candidate and numbers(go_version(candidate)) >= numbers(needed):
            return candidate
    raise RigError(f"Go {needed} or newer is missing: make cluster-tools installs it, or put one on the PATH")


def go_version(go: str) -> str:
    done = subprocess.run(
        [go, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    return done.stdout.strip().removeprefix("go")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version)[:3])


def run(
    title: str,
    command: Sequence[str],
    *,
    log: Path,
    progress: Progress,
    cwd: Path,
    environment: Mapping[str, str],
    terse: bool = False,
) -> None:
    """Runs a long command; says now and then what it is at, and its last words when it fails.

    `terse`: it is one of several of this title, and its end is not worth a line.
    """
    began = progress.seconds()
    with log.open("ab") as out:
        start = out.tell()
        process: subprocess.Popen[bytes] | None = None
        try:
            with later(signal.SIGINT, signal.SIGTERM):  # a process that we do not know yet cannot be ended
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that it ends with all that it has started
                )
            code = _wait(process, title, log, start, progress)
        except BaseException:
            if process is not None:
                _end(process)
            raise
    if code:
        said = log.read_bytes()[start:].decode(errors="replace").splitlines()
        network = any("dial tcp" in one or "lookup " in one or "Temporary failure" in one for one in said)
        words = " / ".join(said[-3:])
        raise RigError(f"{title} failed{' (is there a network?)' if network else ''}: {words} (all of it: {log})")
    if not terse:
        progress.say(f"{title}: done in {progress.seconds() - began:.0f} s")


@contextlib.contextmanager
def later(*numbers: signal.Signals) -> Iterator[None]:
    """Signals that come meanwhile come afterwards. Only the main thread has any to deal with."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        for number in came:
            signal.raise_signal(number)


def _wait(process: subprocess.Popen[bytes], title: str, log: Path, start: int, progress: Progress) -> int:
    """Its exit code, once it has ended; meanwhile what it is at."""
    while True:
        try:
            return process.wait(TELL_SECONDS)
        except subprocess.TimeoutExpired:
            lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
            at = f"{len(lines)} steps, now {lines[-1][:70]}" if lines else "begins"
            progress.say(f"{title}: {at}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and its children: mmdebstrap's go on without their parent otherwise. They may tidy up first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIDY_SECONDS)
