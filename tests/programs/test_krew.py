"""The single file starts with Python alone, is the same whenever it is made, and is what krew's manifest says."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from krew.pack import COMMAND, Packed, pack, write
from nodedevices_common import __version__
from nodedevices_kubectl.commands import COMMANDS

ALONE = (sys.executable, "-I", "-S")  # without a package that is installed here, and without this folder


@pytest.fixture(scope="module")
def packed() -> Packed:
    return pack()


@pytest.fixture(scope="module")
def folder(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krew")
    write(folder, packed)
    return folder


def run(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"KUBECONFIG": "/nowhere", "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_made_twice_it_is_the_same(packed: Packed) -> None:
    assert pack() == packed


def test_it_starts_with_python_alone(folder: Path) -> None:
    done = run(*ALONE, f"{COMMAND}.pyz", "version", "--client", folder=folder)
    assert (done.stdout, done.stderr) == (f"Plugin:      {__version__}\n", "")


def test_every_command_is_in_it_and_the_kubeconfig_is_read(folder: Path) -> None:
    script = "import sys; sys.path.insert(0, sys.argv[1]); from nodedevices_kubectl import commands as c; "
    script += "from nodedevices_kubectl import api; print(*[c.load(each).name for each in c.COMMANDS])"
    done = run(*ALONE, "-c", script, f"{COMMAND}.pyz", folder=folder)
    assert (done.stdout.split(), done.stderr) == (list(COMMANDS), "")
    (folder / "config").write_text("clusters: [")
    done = run(*ALONE, f"{COMMAND}.pyz", "nodes", "--kubeconfig", "config", folder=folder)
    assert "not YAML" in done.stderr


def test_by_its_second_name_it_completes_words(folder: Path) -> None:
    (folder / "kubectl_complete-nodedevices").symlink_to(f"{COMMAND}.pyz")
    done = run(*ALONE, "kubectl_complete-nodedevices", "devi", folder=folder)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == ["devices", ":4"]


def test_what_needs_compiled_packages_says_where_to_have_it(folder: Path) -> None:
    (folder / "p.yaml").write_text("{kind: DevicePolicy, metadata: {name: a}}")
    done = run(*ALONE, f"{COMMAND}.pyz", "policy", "dry-run", "-f", "p.yaml", folder=folder)
    assert done.returncode == 1
    assert "which is not installed; in a clone, pipx install '.[cli]' installs it" in done.stderr


def test_krews_manifest_is_about_the_archive_and_names_what_is_in_it(packed: Packed) -> None:
    spec = yaml.safe_load(packed.files["nodedevices.yaml"])["spec"]
    [platform] = spec["platforms"]
    name = platform["uri"].rpartition("/")[2]
    assert spec["version"] == f"v{__version__}"
    assert platform["sha256"] == hashlib.sha256(packed.files[name]).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(packed.files[name])) as archive:
        [command] = [each for each in archive if each.name == platform["bin"]]
        assert command.mode & 0o111
        assert {"LICENSE", COMMAND} == set(archive.getnames())
