"""The stand-in for libnvidia-ml.so.1, compiled once per session in two ages, and the machine that it describes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from nodedevices_probe.protocol import Snapshot
from support.nvml_library import compiled, compiler
from support.probes import RunningProbe, once, running


@dataclass(frozen=True)
class Libraries:
    current: Path  # folders, each with a libnvidia-ml.so.1
    old: Path


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    by = compiler()
    if by is None:
        pytest.skip("no C compiler: the stand-in for libnvidia-ml.so.1 cannot be built (apt-get install gcc)")
    root = tmp_path_factory.mktemp("nvml")
    compiled(root / "current", by)
    compiled(root / "old", by, "-DOLD_DRIVER")
    return Libraries(root / "current", root / "old")


class FakeMachine:
    """What the stand-in says. `say` adds to it, as a running machine changes."""

    def __init__(self, folder: Path, libraries: Libraries) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self._libraries = libraries
        self._state = folder / "state"
        self._state.write_text("")
        self._events = 0
        self.calls: Path | None = None  # the file that gets the name of each function that is called

    def say(self, **values: object) -> None:
        """Keys as in nvml.c, with `__` for a dot: `gpu3__lost=1`. A later word replaces an earlier one."""
        more = "".join(f"{key.replace('__', '.')}={value}\n" for key, value in values.items())
        self._write(self._state.read_text() + more)

    def event(self, gpu: int, type_: int, data: int = 0, gi: int = -1, ci: int = -1) -> None:
        """The driver reports an event, now."""
        number, self._events = self._events, self._events + 1
        self.say(**{f"event{number}": f"{gpu} {type_:x} {data} {gi} {ci}", "events": self._events})

    def file(self, path: str, content: str) -> None:
        """A file of the kernel, below the root."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def library(self, path: str, *, age: str = "current", link: str = "") -> Path:
        """The library below a driver's root, which is returned; `link`: only a symbolic link to it has that name."""
        driver_root = self.folder / "driver-root"
        target = driver_root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name("fresh")
        if link:
            fresh.symlink_to(link)
        else:
            source = {"current": self._libraries.current, "old": self._libraries.old}[age]
            shutil.copy(source / "libnvidia-ml.so.1", fresh)
        fresh.rename(target)
        return driver_root

    def environment(self, *, age: str = "current") -> Mapping[str, str]:
        folder = {"current": str(self._libraries.current), "old": str(self._libraries.old), "none": ""}[age]
        counted = {"NVML_CALLS": str(self.calls)} if self.calls is not None else {}
        return {"LD_LIBRARY_PATH": folder, "NVML_STATE": str(self._state), **counted}

    def poll(self, *more: str, age: str = "current", driver_root: Path | str = "") -> Snapshot:
        """One line, with `more` arguments. `age`: of the library that the system's loader finds."""
        return once([*self._arguments(driver_root), *more], environment=self.environment(age=age))

    @contextmanager
    def probe(
        self, *, age: str = "current", interval: float = 0.2, driver_root: Path | str = ""
    ) -> Iterator[RunningProbe]:
        """The probe, running."""
        arguments = [*self._arguments(driver_root), "--interval-seconds", str(interval)]
        with running(arguments, environment=self.environment(age=age)) as probe:
            yield probe

    def _arguments(self, driver_root: Path | str) -> list[str]:
        return ["nvml", "--root", str(self.root), "--driver-root-ctr-path", str(driver_root)]

    def _write(self, text: str) -> None:
        fresh = self.folder / "state.new"
        fresh.write_text(text)
        fresh.rename(self._state)


@pytest.fixture
def machine(tmp_path: Path, libraries: Libraries) -> FakeMachine:
    return FakeMachine(tmp_path, libraries)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/nvml/"):
            item.add_marker(pytest.mark.nvml)
