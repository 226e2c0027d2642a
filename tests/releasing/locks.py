"""requirements/*.lock, as uv writes them: packages with their hashes, and who wants whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.markers import Marker

OURS = "nodedevices"
ENTRY = re.compile(
    r"^([\w.-]+)==([^\s;]+)(?: ; ([^\\\n]+?))? \\\n((?: {4}--hash=sha256:[0-9a-f]+(?: \\)?\n)+)((?: {4}#.*\n?)*)",
    re.MULTILINE,
)
WANTED_BY = re.compile(r"^ {4}# +(?:via +)?(?!via$|-c )([\w.-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    sha256: tuple[str, ...]  # of every file that may be installed
    wanted_by: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def read(text: str, environment: Mapping[str, str] | None = None) -> tuple[Package, ...]:
    """The packages that are installed on Linux, by name. `environment`: markers that differ from this machine's."""
    given = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", **(environment or {})}
    packages = []
    for name, version, marker, hashes, comments in ENTRY.findall(text):
        if not marker or Marker(marker).evaluate(given):
            wanted = tuple(sorted(set(WANTED_BY.findall(comments))))
            packages.append(Package(name, version, tuple(re.findall(r"sha256:([0-9a-f]+)", hashes)), wanted))
    if not packages:
        raise ValueError("no package in the lock: was its format changed?")
    return tuple(packages)
