"""`make release`: the same bytes each time, of what is committed; and what its files say is so."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from nodedevices_common import __version__
from releasing import sbom, versions
from support import helm
from support.repository import ROOT

Files = dict[str, bytes]

of_a_commit = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git: a release is of a commit")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Built twice."""
    made = []
    for name in ("one", "other"):
        folder = tmp_path_factory.mktemp(name) / "release"
        command = [str(ROOT / "tests/releasing/release"), sys.executable, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    first, second = made
    assert first == second, [name for name in first if first[name] != second.get(name)]
    return first


def archive(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        members = [(each.name, opened.extractfile(each)) for each in opened.getmembers()]
        return {name: file.read() for name, file in members if file is not None}


@of_a_commit
def test_a_release_is_the_same_bytes_when_it_is_built_again(files: Files) -> None:
    """In another folder, at another time: the fixture compares."""
    ends = {name.rpartition(".")[2] for name in files}
    assert ends == {"whl", "gz", "tgz", "pyz", "json", "yaml", "SHA256SUMS"}


@of_a_commit
def test_the_checksums_are_those_of_the_files(files: Files) -> None:
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "SHA256SUMS"}


@of_a_commit
def test_the_wheel_has_every_package_and_the_sources_what_images_are_built_from(files: Files) -> None:
    with zipfile.ZipFile(io.BytesIO(files[f"nodedevices-{__version__}-py3-none-any.whl"])) as wheel:
        parts = {name.partition("/")[0] for name in wheel.namelist()}
    assert parts >= {f"nodedevices_{part}" for part in ("api", "common", "kubectl", "operator", "plugin", "probe")}
    sources = archive(files[f"nodedevices-{__version__}-source.tar.gz"])
    needed = (
        "plugin/Dockerfile",
        "operator/Dockerfile",
        "requirements/agent.lock",
        "manifests/chart/Chart.yaml",
        "Makefile",
    )
    assert {f"nodedevices-{__version__}/{name}" for name in needed} <= sources.keys()


@of_a_commit
@pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")
def test_helm_renders_the_charts_archive_as_it_does_the_folder(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "chart.tgz"
    path.write_bytes(files[f"nodedevices-{__version__}-chart.tgz"])
    committed = subprocess.run(["git", "archive", "HEAD", "manifests/chart"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(committed.stdout)) as opened:
        opened.extractall(tmp_path, filter="data")
    shown = [
        helm.run("template", "nodedevices", str(chart), "--namespace", helm.NAMESPACE)
        for chart in (path, tmp_path / "manifests" / "chart")
    ]
    assert shown[0].returncode == 0, shown[0].stderr
    assert shown[0].stdout == shown[1].stdout


@pytest.mark.parametrize("image", ["agent", "operator"])
def test_the_bill_of_materials_has_each_package_of_the_lock_with_its_hashes_and_who_wants_it(image: str) -> None:
    lock = (ROOT / "requirements" / f"{image}.lock").read_text()
    bom = json.loads(sbom.bom(f"nodedevices-{image}", lock, 0))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    shown = {each["purl"]: [hash_["content"] for hash_ in each["hashes"]] for each in bom["components"]}
    assert shown == {each.purl: sorted(each.sha256) for each in sbom.packages(lock)}
    reached, waiting = set(), [f"nodedevices-{image}"]
    wanted = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += wanted[name]
    assert reached == {f"nodedevices-{image}", *shown}


LOCK = """\
one==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via nodedevices (pyproject.toml)
two==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:cc
    # via one
three==3.0 \\
    --hash=sha256:dd
    # via
    #   -c requirements/dev.lock
    #   nodedevices (pyproject.toml)
    #   one
"""


def test_a_lock_is_read_for_linux_with_hashes_and_who_wants_what() -> None:
    one, three = sbom.packages(LOCK)
    assert (one.purl, one.sha256, one.wanted_by) == ("pkg:pypi/one@1.0", ("aa", "bb"), frozenset({"nodedevices"}))
    assert (three.name, three.wanted_by) == ("three", frozenset({"nodedevices", "one"}))
    with pytest.raises(ValueError, match="no package in the lock"):
        sbom.packages("[[package]]\nname = 'one'\n")


def test_every_place_has_the_version_and_every_place_is_there() -> None:
    assert {version for _, version in versions.found()} == {__version__}
    for files in versions.PLACES:
        assert any(Path(path).match(files) for path, _ in versions.found()), f"{files}: no version in it"


def test_one_command_writes_the_version_to_every_place(tmp_path: Path) -> None:
    for path, _ in versions.places():
        copy = tmp_path / path.relative_to(versions.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    before = list(versions.found())
    versions.write("9.8.7rc1", tmp_path)
    assert list(versions.found(tmp_path)) == [(path, "9.8.7rc1") for path, _ in before]
    with pytest.raises(ValueError, match=r"V=1\.2: give a version such as 0\.2\.0"):
        versions.write("1.2", tmp_path)
