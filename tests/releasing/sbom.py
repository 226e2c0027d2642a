"""The bill of materials of an image, in CycloneDX 1.6: what pip installs into it, from its lock.

Packages of the base image are not in it: the base is chosen by who builds (BASE), and scanners list its packages.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from releasing.locks import OURS, Package

LICENCE = "Apache-2.0"


def bom(image: str, version: str, packages: Sequence[Package], epoch: int) -> str:
    """JSON; the same for the same input."""
    ours = Component(
        name=image,
        version=version,
        type=ComponentType.CONTAINER,
        licenses=[LicenseExpression(LICENCE)],
        purl=PackageURL("pypi", None, OURS, version),
        bom_ref=image,
    )
    parts = {
        each.name: Component(
            name=each.name,
            version=each.version,
            type=ComponentType.LIBRARY,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content) for content in each.sha256],
            purl=PackageURL("pypi", None, each.name, each.version),
            bom_ref=each.purl,
        )
        for each in packages
    }
    made = Bom(components=parts.values(), serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{image}@{version}#{epoch}"))
    made.metadata.component = ours
    made.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    wanting = {OURS: ours, **parts}
    for name, component in wanting.items():
        made.register_dependency(component, [parts[each.name] for each in packages if name in each.wanted_by])
    return str(JsonV1Dot6(made).output_as_string(indent=2)) + "\n"
