"""The house as it is enforced (import-linter's layers in pyproject.toml) and as docs/architecture.md shows it."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from nodedevices_operator.desired import vendors as labels
from nodedevices_plugin import vendors
from support.cases import cases

ROOT = Path(__file__).parents[2]
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS = [contract for contract in CONTRACTS if contract["type"] == "layers"]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def shown(contract: dict[str, Any]) -> str:
    """The block of the page that says what this contract enforces."""
    of = ", ".join(contract.get("containers", ())) or contract["layers"][0].partition(".")[0]
    layers = [layer.replace(f"{of}.", "") for layer in contract["layers"]]
    return "\n".join([f"layers of {of}: each imports only from the lines below it", *layers])


def test_the_page_shows_every_contract_as_enforced_and_the_operators_names_each_of_its_modules() -> None:
    blocks = re.findall(r"^```\n(layers of .*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    assert sorted(blocks) == sorted(map(shown, LAYERS))
    [operator] = [contract for contract in LAYERS if contract.get("containers") == ["nodedevices_operator"]]
    assert operator["exhaustive"] is True


@cases(
    ("package", "contracts"),
    (vendors, ("The agent knows no vendor but by the registry", "Health knows no vendor")),
    (labels, ("The operator knows no vendor's labels but by the registry",)),
)
def test_every_vendor_is_known_by_its_registry_alone(package: ModuleType, contracts: tuple[str, ...]) -> None:
    """A new one is forbidden to everybody else, too."""
    shared = {"base", "port", "registry"} if package is labels else set()
    own = {info.name for info in pkgutil.iter_modules(package.__path__) if info.ispkg or package is labels} - shared
    wanted = {f"{package.__name__}.{name}" for name in own}
    for contract in CONTRACTS:
        if contract["name"] in contracts:
            assert wanted <= set(contract["forbidden_modules"]), contract["name"]
    assert set(contracts) <= {contract["name"] for contract in CONTRACTS}


@cases("contract", *LAYERS, ids=lambda contract: contract["name"])
def test_no_import_is_excepted_from_the_layers(contract: dict[str, Any]) -> None:
    assert not set(contract) & {"ignore_imports", "exhaustive_ignores", "unmatched_ignore_imports_alerting"}
