"""Which of several configuration files applies, and following a folder of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from nodedevices_plugin.inputs.config_file import MAX_FILES, ConfigFolder
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings import flags
from nodedevices_plugin.settings.file import ConfigError, FileConfig, FileOutcome, NamedFiles, choose
from support.cases import cases
from support.patience import PATIENCE_SECONDS

FOLDER = "/available-configs"
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MIXED = "version: v1\nflags: {migStrategy: mixed}\n"


def named(*names: str) -> NamedFiles:
    """Files with different content."""
    files = {name: FileOutcome(config=FileConfig(flags={"mig-strategy": name})) for name in names}
    return NamedFiles(folder=FOLDER, files=files)


def chosen(files: NamedFiles, name: str = "", default: str = "", fallbacks: Sequence[str] = ()) -> str | None:
    """The name of the file that applies; empty: the empty configuration; None: none can be chosen."""
    outcome = choose(files, name, default=default, fallbacks=fallbacks)
    if outcome.error is not None:
        return None
    return "" if outcome.config is None else str(outcome.config.flags["mig-strategy"])


def error(files: NamedFiles, name: str = "", default: str = "", fallbacks: Sequence[str] = ()) -> str:
    found = choose(files, name, default=default, fallbacks=fallbacks)
    assert found.error is not None
    return f"{found.place}: {found.error}"


@cases(
    ("files", "name", "default", "fallbacks", "expected"),
    (("a", "b"), "a", "b", ("named",), "a"),
    (("a", "b"), "", "b", ("named",), "b"),
    (("a", "default"), "", "", ("named", "single"), "default"),
    (("a",), "", "", ("named", "single"), "a"),
    (("a", "b"), "", "", ("named", "single", "empty"), ""),
    (("a", "default"), "", "", ("empty", "named"), ""),
    (("a", "b"), "", "", ("named", "single"), None),
    (("a",), "", "", (), None),
    (("a",), "missing", "a", ("single", "empty"), None),
    (("a",), "", "missing", ("single", "empty"), None),
    ((), "", "", ("empty",), None),
)
def test_label_then_default_then_fallbacks_as_nvidias_config_manager(
    files: tuple[str, ...], name: str, default: str, fallbacks: tuple[str, ...], expected: str | None
) -> None:
    assert chosen(named(*files), name, default, fallbacks) == expected


def test_what_cannot_be_chosen_is_reported_with_what_there_is() -> None:
    assert error(named("b", "a"), "x") == (
        "configuration 'x' in /available-configs: the Node's label nvidia.com/device-plugin.config names it, and "
        "there is no such file; available: a, b"
    )
    assert "--default-config names it" in error(named("a"), "", "x")
    assert "none of the fallbacks named, single finds one; available: a, b" in error(
        named("a", "b"), fallbacks=("named", "single")
    )
    assert error(NamedFiles(folder=FOLDER)) == "configurations in /available-configs: there is no file"
    assert error(NamedFiles(folder=FOLDER, error="No such file")).endswith("/available-configs: No such file")


def test_the_chosen_file_keeps_its_own_error_and_nvidias_variables_choose_it() -> None:
    files = NamedFiles(folder=FOLDER, files={"a": FileOutcome(error="line 1: not YAML")})
    assert error(files, "a") == "configuration 'a' in /available-configs: line 1: not YAML"
    variables = {"CONFIG_FILE_SRCDIR": FOLDER, "DEFAULT_CONFIG": "a", "FALLBACK_STRATEGIES": "single,empty"}
    found = flags.parse(["--standalone"], variables)
    assert (found.config_dir, found.default_config, found.fallback_strategies) == (FOLDER, "a", ("single", "empty"))
    plain = flags.parse(["--standalone", f"--config-file-srcdir={FOLDER}"], {})
    assert (plain.config_dir, plain.default_config, plain.fallback_strategies) == (FOLDER, "", ("named", "single"))


# --- flags -----------------------------------------------------------------------------------------------------------


@cases(
    ("arguments", "says"),
    (["--config-dir=/a", "--config-file=/b"], "give the folder or the one file"),
    (["--default-config=a"], "--default-config: only valid with --config-dir"),
    (["--fallback-strategies=single"], "--fallback-strategies: only valid with --config-dir"),
    (["--config-dir=/a", "--fallback-strategies=sinle"], "did you mean single?"),
)
def test_what_does_not_go_together_is_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", "[?]")):
        flags.parse(["--standalone", *arguments], {})


# --- the folder ------------------------------------------------------------------------------------------------------
class Mount:
    """A ConfigMap as a kubelet mounts it: links through `..data`, which one rename replaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._generation = 0

    def write(self, **files: str) -> None:
        self._generation += 1
        real = self.folder / f"..gen{self._generation}"
        real.mkdir(parents=True)
        for name, text in files.items():
            (real / name).write_text(text)
        link = self.folder / "..new"
        link.symlink_to(real.name)
        link.replace(self.folder / "..data")
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for shown in self.folder.iterdir():
            if shown.is_symlink() and not shown.name.startswith("..") and shown.name not in files:
                shown.unlink()


class Follower:
    """What the follower reported."""

    def __init__(self, folder: Path) -> None:
        self.received: list[NamedFiles] = []
        self.follower = ConfigFolder(folder, worker=Worker("test"), on_change=self.received.append)

    @property
    def files(self) -> dict[str, str]:
        return {name: it.error or "good" for name, it in self.received[-1].files.items()}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.follower.soon()
                await asyncio.sleep(0.01)


@pytest.fixture
async def mount(tmp_path: Path) -> AsyncIterator[tuple[Mount, Follower]]:
    follower = Follower(tmp_path / "configs")
    await follower.follower.first()
    running = asyncio.create_task(follower.follower.run())
    yield Mount(tmp_path / "configs"), follower
    running.cancel()


async def test_a_mounted_configmap_is_followed_by_content(mount: tuple[Mount, Follower]) -> None:
    configs, follower = mount
    assert follower.received[0].error == "No such file or directory"
    configs.write(shared=SHARED, mixed=MIXED)
    await follower.until(lambda: follower.received[-1].error is None and len(follower.received[-1].files) == 2)
    assert follower.files == {"shared": "good", "mixed": "good"}
    configs.write(shared=SHARED, mixed="flags: [")
    await follower.until(lambda: "not YAML" in follower.files.get("mixed", ""))
    assert follower.files["shared"] == "good"
    configs.write(shared=SHARED)
    await follower.until(lambda: set(follower.files) == {"shared"})


async def test_an_update_that_changes_no_content_reports_nothing(mount: tuple[Mount, Follower]) -> None:
    configs, follower = mount
    configs.write(shared=SHARED)
    await follower.until(lambda: bool(follower.received[-1].files))
    before = len(follower.received)
    configs.write(shared=SHARED)
    (configs.folder / "folder").mkdir()
    configs.write(shared=SHARED, other=MIXED)
    await follower.until(lambda: len(follower.received) > before)
    assert set(follower.files) == {"shared", "other"}
    assert len(follower.received) == before + 1


async def test_a_folder_of_too_many_files_is_reported(mount: tuple[Mount, Follower]) -> None:
    configs, follower = mount
    configs.write(**{f"c{number}": "" for number in range(MAX_FILES + 1)})
    await follower.until(lambda: "are the most" in (follower.received[-1].error or ""))
