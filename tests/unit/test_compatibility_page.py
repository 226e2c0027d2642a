"""docs/compatibility.md and docs/migrate-from-nvidia.md name only settings that exist, by their real names.

And docs/compatibility.md has every setting that NVIDIA's plugin has, too, under every name, with a word on how it
compares. All others are on docs/flags.md, which is generated.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from nodedevices_plugin.settings.file import FEATURE_DISCOVERY
from nodedevices_plugin.settings.options import OPTIONS, by_key
from nodedevices_plugin.vendors.nvidia.flags import DISABLE_VARIABLE, ENABLE_VARIABLE, GOOGLE_VARIABLE
from support.cases import cases

DOCS = Path(__file__).resolve().parents[2] / "docs"
TAKE_ALONG = DOCS.parent / "manifests" / "from-nvidia" / "take-along.jq"
PAGES = ("compatibility.md", "migrate-from-nvidia.md")
FLAGS = {f"--{name}" for option in OPTIONS if option.flag for name in (option.name, *option.aliases)}
VARIABLES = {variable for option in OPTIONS for variable in option.variables} | {
    DISABLE_VARIABLE,
    ENABLE_VARIABLE,
    GOOGLE_VARIABLE,
}
KEYS = {
    *by_key(),
    *FEATURE_DISCOVERY,
    "flags.gfd",
    "version",
    "resources.gpus",
    "resources.mig",
    "sharing.timeSlicing",
    "sharing.mps",
    "sharing.memory",
}
OTHERS_VARIABLES = {
    "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "LD_PRELOAD",  # what a container gets
    "ORION_CONTROLLER", "ORION_VGPU", "ORION_DEVICE_TYPE", "ORION_GMEM", "ORION_RATIO", "ORION_GROUP_ID",
    "NVIDIA_NAMESPACE", "NVIDIA_DAEMONSET", "AGENT_IMAGE", "OPERATOR_IMAGE", "OVERLAY", "DRAIN_TIMEOUT", "NODE",
    "SYS_ADMIN", "UUID",
}  # fmt: skip


def rows(page: str) -> list[tuple[str, bool]]:
    """Every table row, and whether it says that what it names is not needed, so not ours."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [(line, re.search(r"\| not needed[;:]", line) is not None) for line in lines]


def words(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@cases("page", *PAGES)
def test_every_flag_in_a_table_exists_or_is_documented_as_not_needed(page: str) -> None:
    for line, not_ours in rows(page):
        named = {word for word in words(line) if re.fullmatch(r"--[a-z-]+", word)}
        if not_ours:
            assert not named & FLAGS, line
        else:
            assert named <= FLAGS, line


@cases("page", *PAGES)
def test_every_variable_in_a_table_exists(page: str) -> None:
    for line, _ in rows(page):
        named = {word for word in words(line) if re.fullmatch(r"[A-Z]{2,}(_[A-Z]+)*", word)}
        assert named <= VARIABLES | OTHERS_VARIABLES, line


def test_every_key_of_the_file_exists_and_every_setting_is_on_the_page_under_every_name() -> None:
    for line, _ in rows("compatibility.md"):
        named = {word.removesuffix(".*") for word in words(line.split("|")[1])}
        assert {each for each in named if re.match(r"(flags|imex|resources|sharing)\.\w", each)} <= KEYS, line
    text = (DOCS / PAGES[0]).read_text()
    there = ("config-file", "config-dir", "default-config", "fallback-strategies", "kubelet-socket")
    theirs = [option for option in OPTIONS if option.key or option.group == "NVIDIA" or option.name in there]
    flags = {f"--{name}" for option in theirs for name in (option.name, *option.aliases)} - {"--probe"}
    variables = {name for option in theirs for name in option.variables} - {"NODEDEVICES_PROBE"}
    variables |= {DISABLE_VARIABLE, ENABLE_VARIABLE, GOOGLE_VARIABLE}
    documented = flags | variables | {*by_key()} | {"flags.useNodeFeatureAPI", "flags.gfd.*"}
    assert {name for name in documented if f"`{name}`" not in text} == set()


def test_all_of_nvidias_plugin_is_compared_in_one_word_and_no_variable_of_the_chart_is_forgotten() -> None:
    """No row of a table that compares leaves the word out."""
    verdicts = {"same", "better", "different", "not there"}
    for table in re.split(r"\n\n", (DOCS / PAGES[0]).read_text()):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line[:1] == "|"]
        compared = [cells for cells in lines[2:] if set(cells) & verdicts]
        assert compared in ([], lines[2:]), table[:300]
    [known] = re.findall(r"^def known:\n(.*?\]);$", TAKE_ALONG.read_text(), re.DOTALL | re.MULTILINE)
    of_nvidia = {name for option in OPTIONS if option.group == "NVIDIA" for name in option.variables}
    copied = set(json.loads(known))
    assert copied <= VARIABLES
    # Paths inside a container stay: ours has its own.
    assert of_nvidia - copied == {"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"}
