"""Our images for the rig: built from the project's own Dockerfiles by buildah, kept as archives by their content.

The rig changes nothing but BASE, for which mmdebstrap makes an image of this machine's own Debian or Ubuntu, since no
registry is needed that way. What the machine needs to reach a package index (certificates, pip's settings) is mounted
while building and is not in the image. An archive is named by the hash of everything that goes into it: nothing that
did not change is built again, and a changed source builds only the layers above it. Storage and archives are in the
cache; buildah runs in its own mount namespace, so its mounts end with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.rig import binaries, oci
from cluster.rig.problem import Progress, RigError

ROOT = Path(__file__).resolve().parents[3]
BASE = "localhost/nodedevices-base"
WORKLOAD = "localhost/nodedevices-workload:dev"
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
RECIPE = "1"  # to be changed with the commands below
KEEP = 2  # archives of each image; more while somebody may still be reading them
IN_USE_SECONDS = 600
MOST_STORED = 400  # images and intermediate ones; a build with a changed source adds up to ten
EVERYONE = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    ".dockerignore",
    "requirements/build.lock",
    "crds/nodedevices_api",
    "crds/nodedevices_common",
)
BUILDERS = ("docker", "podman", "buildah")
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "cert", "timeout", "default-timeout")
NO_LISTS = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


@dataclass(frozen=True)
class Image:
    name: str
    folder: str
    packages: tuple[str, ...]
    lock: str
    tag: str = "dev"

    @property
    def dockerfile(self) -> str:
        return f"{self.folder}/Dockerfile"

    @property
    def reference(self) -> str:
        return f"localhost/{self.name}:{self.tag}"

    @property
    def archive(self) -> str:
        """How the names of its archives begin."""
        return self.name if self.tag == "dev" else f"{self.tag}-{self.name}"

    @property
    def sources(self) -> tuple[str, ...]:
        return (*EVERYONE, self.dockerfile, f"requirements/{self.lock}", *self.packages)


IMAGES = (
    Image(
        "nodedevices-agent",
        "plugin",
        ("crds/nodedevices_kube", "plugin/nodedevices_plugin", "plugin/nodedevices_probe"),
        "agent.lock",
    ),
    Image(
        "nodedevices-operator",
        "operator",
        ("crds/nodedevices_kube", "cli/nodedevices_kubectl", "operator/nodedevices_operator"),
        "operator.lock",
    ),
)


def references(images: Sequence[Image] = IMAGES) -> dict[str, str]:
    """Name in the manifests -> the reference that the rig's nodes know."""
    return {one.name: one.reference for one in images}


def local(progress: Progress) -> list[Path]:
    """Archives of all images for the rig, in the state of this working tree, and of the one for pods that only wait."""
    archives = built(progress, IMAGES, ROOT)
    with _store() as store:
        workload = store / f"nodedevices-workload-{RECIPE}.tar"
        if not workload.exists():
            oci.busybox_image(workload, WORKLOAD, ["/bin/busybox", "sleep", "2147483647"])
    return [*archives, workload]


def built_already() -> bool:
    """Whether the archives of this working tree's images are there."""
    store = binaries.cache() / "images"
    return all(_archive(store, one, ROOT).exists() for one in IMAGES)


def built(progress: Progress, images: Sequence[Image], root: Path) -> list[Path]:
    """Archives of these images, made of the sources in this folder."""
    missing = [one for one in ("buildah", "mmdebstrap", "runc", "busybox", "unshare") if not shutil.which(one)]
    if os.geteuid():
        raise RigError("images for the rig need root (mmdebstrap and buildah); `make images REGISTRY=...` does not")
    if missing:
        raise RigError(f"missing here: {', '.join(missing)}; make cluster-tools installs them on Debian and Ubuntu")
    with _store() as store:
        sweep(store)
        archives = {one: _archive(store, one, root) for one in images}
        if not all(archive.exists() for archive in archives.values()):
            _bound_storage(store, progress)
            base = _base(store, progress)
            with ThreadPoolExecutor(max_workers=len(images)) as pool:
                jobs = {one: pool.submit(_build, one, store, base, progress, root) for one in images}
                archives = {one: job.result() for one, job in jobs.items()}
        for image, archive in archives.items():
            archive.touch()
            _forget_old(store, image)
    return [*archives.values()]


@contextmanager
def _store() -> Iterator[Path]:
    """The folder of the archives, for one at a time."""
    store = binaries.cache() / "images"
    store.mkdir(parents=True, exist_ok=True)
    with (store / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield store


def sweep(store: Path) -> None:
    """Remove what a build that was killed left half written. Only under the lock: nobody else builds then."""
    for one in store.glob("*.new"):
        one.unlink()
    for one in store.glob("tmp*"):  # TemporaryDirectory
        shutil.rmtree(one, ignore_errors=True)


def content(image: Image, root: Path = ROOT) -> str:
    """A hash of everything that decides what is in the image."""
    digest = hashlib.sha256(f"{RECIPE} {_suite()} {BASE_PACKAGES} {NO_LISTS}".encode())
    for source in image.sources:
        path = root / source
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root)}\0{file.stat().st_mode & 0o777:o}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _forget_old(store: Path, image: Image) -> None:
    archives = sorted(store.glob(f"{image.archive}-*.tar"), key=lambda one: one.stat().st_mtime, reverse=True)
    for one in archives[KEEP:]:
        if one.stat().st_mtime < time.time() - IN_USE_SECONDS:
            one.unlink()


def _bound_storage(store: Path, progress: Progress) -> None:
    """Every build leaves layers, which make the next one quick; after so many only the base images are kept."""
    command = _buildah("images", "--all", "--format", "{{.ID}} {{.Name}}")
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    others = sorted({line.split()[0] for line in listed if BASE not in line})
    if len(others) > MOST_STORED:
        progress.say("image storage: emptied, it had grown")
        _run("storage", _buildah("rmi", "--force", *others), store, progress)


def _suite() -> str:
    """This machine's own release: its mirrors and keys are at hand."""
    known = platform.freedesktop_os_release()
    if known.get("ID") not in {"debian", "ubuntu"} or "VERSION_CODENAME" not in known:
        raise RigError(f"images for the rig are made of Debian or Ubuntu; this is {known.get('PRETTY_NAME')}")
    return known["VERSION_CODENAME"]


def _base(store: Path, progress: Progress) -> str:
    """The reference of an image that holds this release with Python."""
    suite = _suite()
    name = (
        f"localhost/nodedevices-base:{suite}-{hashlib.sha256(f'{BASE_PACKAGES} {NO_LISTS}'.encode()).hexdigest()[:8]}"
    )
    if subprocess.run(_buildah("inspect", "--type", "image", name), capture_output=True, check=False).returncode == 0:
        return name
    progress.say(f"base image: {suite} with {', '.join(BASE_PACKAGES)} (one time)")
    components = "main,universe" if platform.freedesktop_os_release().get("ID") == "ubuntu" else "main"
    with tempfile.TemporaryDirectory(dir=store) as folder:
        root, dockerfile = Path(folder) / "base.tar", Path(folder) / "Dockerfile"
        _run(
            "base image",
            [
                *("mmdebstrap", "--variant=minbase", f"--components={components}"),
                *(f"--dpkgopt=path-exclude={one}" for one in NO_LISTS),
                *(f"--include={','.join(BASE_PACKAGES)}", suite, str(root)),
            ],
            store,
            progress,
        )
        dockerfile.write_text("FROM scratch\nADD base.tar /\n")
        _run("base image", _buildah("bud", "--tag", name, folder), store, progress)
    return name


def _archive(store: Path, image: Image, root: Path) -> Path:
    return store / f"{image.archive}-{content(image, root)}.tar"


def _build(image: Image, store: Path, base: str, progress: Progress, root: Path) -> Path:
    """The image's archive, built from a copy of its sources: while they are edited, its name stays true."""
    with tempfile.TemporaryDirectory(dir=store) as name:
        context = Path(name)
        for source in image.sources:
            (context / source).parent.mkdir(parents=True, exist_ok=True)
            if (root / source).is_dir():
                shutil.copytree(root / source, context / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(root / source, context / source)
        archive = _archive(store, image, context)
        if not archive.exists():
            progress.say(f"{image.archive}: building")
            _build_from(context, image, archive, base, progress)
            progress.say(f"{image.name}: {archive}")
    return archive


def _build_from(context: Path, image: Image, archive: Path, base: str, progress: Progress) -> None:
    store = archive.parent
    with _pip_settings() as pip:
        mounts = [f"--volume={pip}:/etc/pip.conf:ro"]
        if Path("/etc/ssl/certs").is_dir():
            mounts.append("--volume=/etc/ssl/certs:/etc/ssl/certs:ro")
        command = _buildah(
            *("bud", "--layers", "--build-arg", f"BASE={base}", *mounts),
            *("--file", str(context / image.dockerfile), "--tag", image.reference, str(context)),
        )
        _run(image.name, command, store, progress)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    # This format leaves the layers as they are; compressing 350 MB takes longer than everything else.
    target = f"docker-archive:{new}:{image.reference}"
    _run(image.name, _buildah("push", image.reference, target), store, progress)
    new.rename(archive)


def _buildah(*args: str) -> list[str]:
    """A buildah command with storage in our cache, and mounts that end with it."""
    storage = binaries.cache() / "containers"
    places = ["--root", str(storage), "--runroot", str(storage / "run"), "--storage-driver", "overlay"]
    isolated = ["unshare", "--mount", "--propagation", "private"]
    return [*isolated, "env", "BUILDAH_ISOLATION=chroot", "buildah", *places, *args]


@contextmanager
def _pip_settings() -> Iterator[Path]:
    """A pip.conf with how this machine reaches its package index; empty where nothing is set."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    known: dict[str, str] = {}
    for found in re.finditer(r"^(?:\S+)\.([a-z-]+)='(.*)'$", done.stdout, re.MULTILINE):
        if found.group(1) in PIP_SETTINGS:
            known[found.group(1).replace("default-timeout", "timeout")] = found.group(2)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("[global]\n" + "".join(f"{key} = {value}\n" for key, value in known.items()))
        file.flush()
        yield Path(file.name)


def _run(title: str, command: Sequence[str], store: Path, progress: Progress) -> None:
    log = store / f"{title.replace(' ', '-')}.log"
    if log.exists() and log.stat().st_size > 1 << 20:
        log.unlink()
    binaries.run(title, command, log=log, progress=progress, cwd=ROOT, environment=os.environ, terse=True)


def _works(builder: str) -> bool:
    """Whether it is here, and so is the daemon that it may need."""
    return bool(shutil.which(builder)) and (
        subprocess.run([builder, "info"], capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0
    )


def push(registry: str, tag: str, progress: Progress) -> dict[str, str]:
    """Builds with whatever builder the user has, and pushes; references."""
    if "://" in registry:
        raise RigError(
            f"REGISTRY={registry}: give it as images have it, without ://, such as registry.example.com/team"
        )
    builder = _builder("to build images for a registry")
    pushed = {}
    for image in IMAGES:
        reference = f"{registry.rstrip('/')}/{image.name}:{tag}"
        progress.say(f"{image.name}: {builder} build, push to {reference}")
        _do(_build_command(builder, image, reference), [builder, "push", reference])
        pushed[image.name] = reference
    return pushed


def saved(folder: Path, progress: Progress) -> list[Path]:
    """Builds with whatever builder the user has, and writes an archive of each image; its reference is the rig's."""
    builder = _builder("to build images")
    archives = []
    for image in IMAGES:
        archive = folder / f"{image.name}.tar"
        progress.say(f"{image.name}: {builder} build, saved as an archive")
        # Not compressed: minikube loads nothing of an archive that is, and says nothing (minikube 21678).
        save = {
            "docker": ["docker", "save", "--output", str(archive), image.reference],
            "podman": ["podman", "save", "--format", "docker-archive", "--output", str(archive), image.reference],
            "buildah": ["buildah", "push", image.reference, f"docker-archive:{archive}:{image.reference}"],
        }[builder]
        _do(_build_command(builder, image, image.reference), save)
        archives.append(archive)
    return archives


def _builder(why: str) -> str:
    builder = next((one for one in BUILDERS if _works(one)), None)
    if builder is None:
        raise RigError(f"none of {', '.join(BUILDERS)} works here; one is needed {why}")
    return builder


def _build_command(builder: str, image: Image, reference: str) -> list[str]:
    """From the Dockerfile's own BASE, or $BASE."""
    base = os.environ.get("BASE")
    arguments = shlex.split(os.environ.get("BUILD_FLAGS", ""))  # a proxy, certificates: whatever the place needs
    arguments += ["--build-arg", f"BASE={base}"] if base else []
    return [builder, "build", *arguments, "--file", image.dockerfile, "--tag", reference, "."]


def _do(*commands: Sequence[str]) -> None:
    for command in commands:
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise RigError(f"{' '.join(command)} failed")
