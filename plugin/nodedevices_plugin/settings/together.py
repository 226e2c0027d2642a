"""Which flags need others, and which do not go together: what the agent refuses, as data.

The chart refuses the same before anything is installed: its table is made of this one (tests/helmchart). A term is a
flag that is given, `simulated`, or one of its values, `device-list-strategy=envvar`; `probe=simulated` is a probe
by its name, wherever it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodedevices_common import guard
from nodedevices_probe.kind import DEVICES_DIR
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.settings.options import vendors_flags
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_plugin.vendors.settings import FlagRule

ONLY_WITH: Mapping[str, str] = {
    "default-config": "config-dir",
    "fallback-strategies": "config-dir",
    **guard.ONLY_WITH,
}
NOT_WITH: Mapping[str, str] = {"config-file": "config-dir"}
DOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$"


def rules(vendors: Vendors = VENDORS) -> tuple[FlagRule, ...]:
    """Return what holds wherever probes are configured."""
    return (
        *(FlagRule(when=name, needs=(other,)) for name, other in ONLY_WITH.items()),
        *(FlagRule(when=name, excludes=(other,)) for name, other in NOT_WITH.items()),
        *(rule for flag in vendors_flags(vendors) for rule in flag.rules),
    )


def probe_rules() -> Iterator[FlagRule]:
    """Yield what holds where flags say which probes run, or nothing does: not a configuration file."""
    for kind in KINDS.values():
        probe = f"probe={kind.name}"
        for name in kind.requires:
            option = DEVICES_DIR if name in kind.files else name
            yield FlagRule(when=probe, needs=(option,))
            if kind.alone:
                yield FlagRule(when=option, needs=(probe,))
