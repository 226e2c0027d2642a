"""`python -m releasing.sbom nodedevices-agent requirements/agent.lock`: an image's bill of materials, in CycloneDX 1.6.

It has what pip installs on Linux by the lock, each with the hashes of its files and who wants it. Packages of the base
image are not in it: the base is chosen by who builds (BASE), and scanners list its packages.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from nodedevices_common import __version__
from packageurl import PackageURL
from packaging.markers import Marker

OURS = "nodedevices"
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
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
    wanted_by: frozenset[str]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def packages(lock: str) -> tuple[Package, ...]:
    """The packages of a lock as uv writes it that are installed on Linux, by name."""
    found = tuple(
        Package(name, version, tuple(re.findall(r"sha256:([0-9a-f]+)", hashes)), frozenset(WANTED_BY.findall(comments)))
        for name, version, marker, hashes, comments in ENTRY.findall(lock)
        if not marker or Marker(marker).evaluate(LINUX)
    )
    if not found:
        raise ValueError("no package in the lock: was its format changed?")
    return found


def bom(image: str, lock: str, epoch: int) -> str:
    """JSON; the same for the same input."""
    ours = Component(
        name=image,
        version=__version__,
        type=ComponentType.CONTAINER,
        licenses=[LicenseExpression("Apache-2.0")],
        purl=PackageURL("pypi", None, OURS, __version__),
        bom_ref=image,
    )
    known = packages(lock)
    parts = {
        each.name: Component(
            name=each.name,
            version=each.version,
            type=ComponentType.LIBRARY,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content) for content in each.sha256],
            purl=PackageURL("pypi", None, each.name, each.version),
            bom_ref=each.purl,
        )
        for each in known
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{image}@{__version__}#{epoch}")
    made = Bom(components=parts.values(), serial_number=serial)
    made.metadata.component = ours
    made.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    for name, component in {OURS: ours, **parts}.items():
        made.register_dependency(component, [parts[each.name] for each in known if name in each.wanted_by])
    return str(JsonV1Dot6(made).output_as_string(indent=2)) + "\n"


if __name__ == "__main__":
    print(bom(sys.argv[1], Path(sys.argv[2]).read_text(), int(os.environ["SOURCE_DATE_EPOCH"])), end="")
