"""`make demo-on`: how our images come into a cluster of kind, k3d or minikube."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import desk
from support.desk import Desk
from support.kubectl import KubectlError

RECORDING = '#!/bin/sh\necho "$(basename "$0") $*" >> "$RECORD"\n'
SAVES = 'case "$1" in save) touch "$3" ;; esac\n'  # docker save --output FILE
KIND, K3D, MINIKUBE = (desk.named(tool) for tool in ("kind", "k3d", "minikube"))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for docker and the tools, which record what they are called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("docker", "kind", "k3d", "minikube"):
        program = folder / name
        program.write_text(RECORDING + SAVES)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.delenv("BASE", raising=False)
    monkeypatch.delenv("BUILD_FLAGS", raising=False)
    return folder


def recorded(tmp_path: Path) -> list[str]:
    return re.sub(r"/\S*/(nodedevices-\w+\.tar)", r"\1", (tmp_path / "record").read_text()).splitlines()


@pytest.mark.parametrize(
    ("cluster", "loading"),
    [
        (KIND, "kind load image-archive {} --name kind"),
        (K3D, "k3d image import {} --cluster k3s-default"),
        (MINIKUBE, "minikube image load {} --profile minikube"),
    ],
)
def test_images_are_built_saved_and_loaded_without_a_registry(
    programs: Path, tmp_path: Path, cluster: Desk, loading: str
) -> None:
    references = desk.load(cluster, lambda _: None)
    built = [(name, Path(part) / "Dockerfile") for name, part in (("agent", "plugin"), ("operator", "operator"))]
    commands = []
    for name, dockerfile in built:
        reference = references[f"nodedevices-{name}"]
        commands += [
            f"docker build --file {dockerfile} --tag {reference} .",
            f"docker save --output nodedevices-{name}.tar {reference}",
        ]
    commands += [loading.format(f"nodedevices-{name}.tar") for name, _ in built]
    assert recorded(tmp_path) == ["docker info", *commands]


def test_a_tool_that_fails_ends_it_with_its_words(programs: Path) -> None:
    (programs / "kind").write_text("#!/bin/sh\necho 'no nodes found for cluster \"kind\"' >&2\nexit 1\n")
    with pytest.raises(KubectlError, match=r"kind load image-archive .* no nodes found for cluster"):
        desk.load(KIND, lambda _: None)
