"""The stand-in for libnvidia-ml.so.1, compiled once per session in two ages, and the machine that it describes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from nodedevices_probe.protocol import DeviceFact, Snapshot
from support.nvml_library import compiled, compiler
from support.probes import RunningProbe, once, running

LIBRARY = "libnvidia-ml.so.1"
FOLDER = "lib64"  # where it is below a driver's root
AGES = {"current": (), "old": ("-DOLD_DRIVER",)}


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """By age, a driver's root that has nothing but the library."""
    by = compiler()
    if by is None:
        pytest.skip("no C compiler: the stand-in for libnvidia-ml.so.1 cannot be built (apt-get install gcc)")
    roots = {age: tmp_path_factory.mktemp(age) for age in AGES}
    for age, flags in AGES.items():
        compiled(roots[age] / FOLDER, by, *flags)
    return roots


class FakeMachine:
    """What the stand-in says. `say` adds to it, as a running machine changes."""

    def __init__(self, folder: Path, drivers: Mapping[str, Path]) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self._drivers = drivers
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
            shutil.copy(self._drivers[age] / FOLDER / LIBRARY, fresh)
        fresh.rename(target)
        return driver_root

    def environment(self, *, age: str = "current") -> Mapping[str, str]:
        """`age`: of the library that the system's loader finds, where a new interpreter looks for it; or "none"."""
        folder = self._drivers[age] / FOLDER if age in AGES else ""
        counted = {"NVML_CALLS": str(self.calls)} if self.calls is not None else {}
        return {"LD_LIBRARY_PATH": str(folder), "NVML_STATE": str(self._state), **counted}

    def poll(self, *more: str, age: str = "current") -> Snapshot:
        """One line, with `more` arguments, of a driver of this age."""
        return once(*self.arguments(self._drivers.get(age, "")), *more, environment=self.environment(age="none"))

    def gpus(self, *said: Mapping[str, object]) -> tuple[DeviceFact, ...]:
        """A GPU for each of these, of which that is said, polled once."""
        each = {f"gpu{index}__{key}": value for index, one in enumerate(said) for key, value in one.items()}
        self.say(count=len(said), **each)
        return self.poll().devices

    @contextmanager
    def probe(
        self, *, age: str = "current", interval: float = 0.2, driver_root: Path | str | None = None, fresh: bool = False
    ) -> Iterator[RunningProbe]:
        """The probe, running, with the driver of this age, or that below this root."""
        root = self._drivers[age] if driver_root is None else driver_root
        arguments = [*self.arguments(root), "--interval-seconds", str(interval)]
        with running(arguments, environment=self.environment(age="none"), fresh=fresh) as probe:
            yield probe

    def arguments(self, driver_root: Path | str) -> list[str]:
        return ["nvml", "--root", str(self.root), "--driver-root-ctr-path", str(driver_root)]

    def _write(self, text: str) -> None:
        fresh = self.folder / "state.new"
        fresh.write_text(text)
        fresh.rename(self._state)


@pytest.fixture
def machine(tmp_path: Path, drivers: Mapping[str, Path]) -> FakeMachine:
    return FakeMachine(tmp_path, drivers)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/nvml/"):
            item.add_marker(pytest.mark.nvml)
