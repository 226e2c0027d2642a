"""Flags of Xilinx' cards, and the variables of Xilinx' device plugin (FPGA_as_a_Service, k8s-device-plugin).

A DaemonSet written for that plugin says the same things here. What a policy can say, too, becomes a section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from nodedevices_common.options import Values, option
from nodedevices_probe.fpga import NAMES_FILE
from nodedevices_probe.kind import DEVICES_DIR

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.vendors.flags import FlagRule, VendorFlags

GROUP = "FPGA"
MOUNTED_NAMES = "/opt/xilinx/device-plugin-configmap"  # where Xilinx' plugin has them
NEW_PREFIX, OLD_PREFIX = "amd.com/", "xilinx.com/fpga-"
COMMON, EXACT = "CommonName", "ExactName"
CARD, DEVICE = "Card", "Device"
VIRTUAL, VIRTUAL_COUNT, CUSTOMIZE = "VirtualDev", "VirtualNum", "DeviceNameCustomize"
MAX_SHARES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class XilinxSettings:
    """`names`: whether the file of names applies. `shares`: of each card; 0: it is offered whole. `management`: whether
    containers get management nodes."""

    decides_ids: ClassVar[bool] = True

    prefix: str = NEW_PREFIX
    exact_u30_names: bool = False
    names: bool = True
    shares: int = 0
    management: bool = False


def settings_of(local: object) -> XilinxSettings:
    """Return the settings of a NodeView or a Naming; the defaults where it has none."""
    return local if isinstance(local, XilinxSettings) else XilinxSettings()


def settings(values: Values) -> XilinxSettings:
    return XilinxSettings(
        prefix=values.text("fpga-resource-prefix"),
        exact_u30_names=_one_of(values, "u30-name-convention", COMMON, EXACT) == EXACT,
        names=_names(values),
        shares=_shares(values),
        management=values.truth("fpga-management-nodes"),
    )


def sections(values: Values) -> dict[str, Any]:
    """Device: the FPGAs of a U30 one by one, which is partitions.strategy."""
    if not values.said("u30-alloc-unit"):
        return {}
    unit = _one_of(values, "u30-alloc-unit", CARD, DEVICE)
    return {"partitions": {"strategy": "single" if unit == DEVICE else "none"}}


def _one_of(values: Values, name: str, *known: str) -> str:
    """Read a value in any case, as that plugin does. A value that it silently replaces by its default is refused."""
    said = values.text(name)
    found = next((value for value in known if value.lower() == said.lower()), None)
    if found is None:
        raise PlanError(values.options[name].place, said, f"give {' or '.join(known)}")
    return found


def _truth(values: Values, name: str) -> bool | None:
    said = str(values.given.get(name, "")).strip().lower()
    if said not in {"", "true", "false"}:
        raise PlanError(f"environment variable {name}", said, "give True or False")
    return None if not said else said == "true"


def _names(values: Values) -> bool:
    customize = _truth(values, CUSTOMIZE)
    if customize and not values.text(DEVICES_DIR):
        hint = f"it needs --{DEVICES_DIR}, a folder with {NAMES_FILE}, such as --{DEVICES_DIR}={MOUNTED_NAMES}"
        raise PlanError(f"environment variable {CUSTOMIZE}", "True", hint)
    return customize is not False


def _shares(values: Values) -> int:
    if not _truth(values, VIRTUAL):
        return 0
    said = str(values.given.get(VIRTUAL_COUNT, "")).strip() or "1"  # left out it is 1 there, too
    if not said.isascii() or not said.isdecimal() or not 1 <= int(said[:6]) <= MAX_SHARES:
        hint = f"{VIRTUAL}=True needs a number of shares for each card, from 1 to {MAX_SHARES}"
        raise PlanError(f"environment variable {VIRTUAL_COUNT}", said, hint)
    return int(said)


FLAGS = VendorFlags(
    group=GROUP,
    title=f"of Xilinx' cards, with {VIRTUAL}, {VIRTUAL_COUNT} and {CUSTOMIZE} of its device plugin",
    settings=settings,
    settings_type=XilinxSettings,
    sections=sections,
    options=(
        option(
            "fpga-resource-prefix",
            "prefix of [resource names](devices/fpga.md#what-is-offered-and-what-a-pod-writes) before "
            "`<shell>-<timestamp>`; xilinx.com/fpga-: as Xilinx' plugin before 2022",
            group=GROUP,
            default=NEW_PREFIX,
            choices=(NEW_PREFIX, OLD_PREFIX),
            flag=False,
        ),
        option(
            "u30-name-convention",
            f"{COMMON}: each U30 is amd.com/ama_u30; {EXACT}: named by shell, as other cards",
            group=GROUP,
            default=COMMON,
            variables=("U30NameConvention",),
            flag=False,
        ),
        option(
            "u30-alloc-unit",
            f"{CARD}: offer whole U30s; {DEVICE}: offer both FPGAs of each (partitions.strategy single)",
            group=GROUP,
            default=CARD,
            variables=("U30AllocUnit",),
            flag=False,
        ),
        option(
            "fpga-management-nodes",
            "also give containers their cards' management nodes (`/dev/xclmgmt<N>`), which can reset and program a "
            "card",
            group=GROUP,
            default=False,
        ),
    ),
    variables=(VIRTUAL, VIRTUAL_COUNT, CUSTOMIZE),
    rules=(FlagRule(when=f"{CUSTOMIZE}=true", needs=(DEVICES_DIR,)),),
)
