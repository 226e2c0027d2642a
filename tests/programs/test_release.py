"""`make release`: the same bytes each time, of what is committed; and what its files say is so."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nodedevices_common import __version__
from releasing import locks, statements, versions
from releasing.build import Commit, release, tree_of
from support import helm

Files = dict[str, bytes]

of_a_commit = pytest.mark.skipif(not (versions.ROOT / ".git").exists(), reason="no git: a release is of a commit")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with tree_of(Commit.head()) as folder:
        yield folder


@pytest.fixture(scope="module")
def files(tree: Path) -> Files:
    commit = Commit.head()
    made = release(tree, commit, __version__, source="https://example.com/nodedevices")
    with tree_of(commit) as other:
        again = release(other, commit, __version__, source="https://example.com/nodedevices")
    assert made == again, [name for name in made if made[name] != again.get(name)]
    return made


def archive(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        members = [(each.name, opened.extractfile(each)) for each in opened.getmembers()]
        return {name: file.read() for name, file in members if file is not None}


@of_a_commit
def test_a_release_is_the_same_bytes_when_it_is_built_again(files: Files) -> None:
    """In another folder, at another time: the fixture compares."""
    assert {name.rpartition(".")[2] for name in files} == {
        "whl",
        "gz",
        "tgz",
        "pyz",
        "json",
        "yaml",
        "yml",
        "SHA256SUMS",
    }


@of_a_commit
def test_the_checksums_and_the_provenance_are_those_of_the_files(files: Files) -> None:
    sums = {name: digest for digest, name in (line.split("  ") for line in files["SHA256SUMS"].decode().splitlines())}
    real = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "SHA256SUMS"}
    assert sums == real
    [proof] = [name for name in files if name.endswith(".intoto.json")]
    statement = json.loads(files[proof])
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == {
        name: digest for name, digest in real.items() if name != proof
    }
    commit, *pinned = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": Commit.head().id}
    assert len(pinned) == 3


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
def test_krews_manifest_has_the_sum_of_krews_archive(files: Files) -> None:
    [platform] = yaml.safe_load(files["nodedevices.yaml"])["spec"]["platforms"]
    packed = files[f"kubectl-nodedevices-v{__version__}.tar.gz"]
    assert platform["sha256"] == hashlib.sha256(packed).hexdigest()


@of_a_commit
@pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")
def test_helm_renders_the_charts_archive_as_it_does_the_folder(files: Files, tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "chart.tgz"
    path.write_bytes(files[f"nodedevices-{__version__}-chart.tgz"])
    shown = [
        helm.run("template", "nodedevices", str(chart), "--namespace", helm.NAMESPACE)
        for chart in (path, tree / "manifests" / "chart")
    ]
    assert shown[0].returncode == 0, shown[0].stderr
    assert shown[0].stdout == shown[1].stdout


@of_a_commit
@pytest.mark.parametrize("image", ["agent", "operator"])
def test_the_bill_of_materials_has_each_package_of_the_lock_with_its_hashes_and_who_wants_it(
    files: Files, tree: Path, image: str
) -> None:
    bom = json.loads(files[f"nodedevices-{image}-{__version__}.cdx.json"])
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    packages = locks.read((tree / "requirements" / f"{image}.lock").read_text())
    shown = {each["purl"]: [hash_["content"] for hash_ in each["hashes"]] for each in bom["components"]}
    assert shown == {each.purl: sorted(each.sha256) for each in packages}
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
    one, three = locks.read(LOCK)
    assert (one.purl, one.sha256, one.wanted_by) == ("pkg:pypi/one@1.0", ("aa", "bb"), ("nodedevices",))
    assert (three.name, three.wanted_by) == ("three", ("nodedevices", "one"))
    with pytest.raises(ValueError, match="no package in the lock"):
        locks.read("[[package]]\nname = 'one'\n")


STATEMENT = {"vulnerability": "CVE-1", "package": "one", "status": "not_affected", "impact": "because"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"package": "four"}, "CVE-1: four is in no lock"), ({"status": "fine"}, "status fine: give one of not_affected")],
)
def test_a_statement_about_what_is_not_there_or_in_other_words_is_refused(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        statements.vex([{**STATEMENT, **wrong}], locks.read(LOCK), "1.0", 0)


def test_an_openvex_statement_names_the_package_as_the_bill_of_materials_does() -> None:
    [found] = json.loads(statements.vex([STATEMENT], locks.read(LOCK), "1.0", 0))["statements"]
    assert found["products"] == [{"@id": "pkg:pypi/nodedevices@1.0", "subcomponents": [{"@id": "pkg:pypi/one@1.0"}]}]
    assert found["impact_statement"] == "because"


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
