"""Which Kubernetes the rig can run: each release whole, and one chosen by its name."""

from __future__ import annotations

import re

import pytest
from cluster.rig import versions
from cluster.rig.problem import RigError

each_version = pytest.mark.parametrize("version", versions.known(), ids=lambda each: each.minor)


def test_another_is_chosen_by_its_name() -> None:
    oldest = versions.known()[0]
    assert versions.chosen({}) == versions.Version(versions.DEFAULT)
    assert versions.chosen({"KUBERNETES": oldest.minor}) == oldest
    with pytest.raises(RigError, match=r"KUBERNETES=1\.31: there is 1\.32, .*1\.36"):
        versions.chosen({"KUBERNETES": "1.31"})


@each_version
def test_a_release_is_of_its_minor_version_and_so_is_every_part_of_it(version: versions.Version) -> None:
    modules, sums = version.files
    assert version.release.startswith(f"v{version.minor}.")
    part = version.release.replace("v1.", "v0.", 1)
    text = modules.read_text()
    replaced = re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ (\S+)$", text, re.MULTILINE)
    assert set(replaced) == {part}
    assert f"k8s.io/kubernetes {version.release} h1:" in sums.read_text()


def test_a_module_file_has_each_staging_module_as_it_was_published() -> None:
    staged = {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}}
    other = {"Old": {"Path": "example.com/fork"}, "New": {"Path": "example.com/forked", "Version": "v1.0.0"}}
    upstream = {
        "Go": "1.26.0",
        "Require": [
            {"Path": "go.etcd.io/etcd/client/v3", "Version": "v3.6.8"},
            {"Path": "github.com/spf13/cobra", "Version": "v1.10.2"},
        ],
        "Replace": [staged, other],
    }
    assert versions.module_file("1.38.4", upstream).splitlines() == [
        "// Written by: tests/cluster/cluster pin 1.38.4",
        "module nodedevices.io/tests/cluster/kube",
        "go 1.26.0",
        "require (",
        "\tgithub.com/spf13/cobra v1.10.2",
        "\tgo.etcd.io/etcd/server/v3 v3.6.8",
        "\tk8s.io/kubernetes v1.38.4",
        ")",
        "replace (",
        "\tk8s.io/api => k8s.io/api v0.38.4",
        ")",
    ]


def test_what_is_no_release_is_refused_before_anything_is_written() -> None:
    with pytest.raises(RigError, match="not a release like"):
        versions.pin("1.38", go="go")
