"""Bounds that a probe's line and the contract share: what a line may say, the agent can report.

This module imports next to nothing, because a probe is as small as it can be. The contract's types (`fields`) and the
line's (nodedevices_probe.protocol) are made of these; a line that the reader accepted never fails a report.
"""

import re
from typing import Final

INT32_MAX: Final = 2**31 - 1
MAX_DEVICES: Final = 256  # of one node
MAX_PARTITIONS: Final = 64  # of one device
MAX_INDEX: Final = 1023
MAX_PARTITION_INDEX: Final = 65535  # of a partition among those of its device
MAX_NUMA_NODE: Final = 1023
MAX_MINOR: Final = (1 << 20) - 1  # the kernel's minor numbers have 20 bits
DEVICE_ID_PATTERN: Final = r"^[A-Za-z0-9._:-]+$"
MAX_DEVICE_ID: Final = 96
WORD_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9]{0,63}$"  # a reason, an action, a kind
DEVICE_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"  # of a device in a ResourceSlice: a DNS label
MAX_DEVICE_NAME: Final = 63
PROBE_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MAX_PROBE_NAME: Final = 32
MAX_PROBES: Final = 16
# Attributes and capacities as a ResourceSlice takes them (resource.k8s.io/v1): a C identifier of at most 32 characters,
# with or without a domain; values of at most 64 bytes; 32 of both together, the common attributes included.
ATTRIBUTE_NAME_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z_][A-Za-z0-9_]{0,31}$"
)
MAX_ATTRIBUTE_NAME: Final = 64
SEMANTIC_VERSION_PATTERN: Final = (
    r"^(0|[1-9][0-9]{0,9})[.](0|[1-9][0-9]{0,9})[.](0|[1-9][0-9]{0,9})"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)([.](0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"([+][0-9A-Za-z-]+([.][0-9A-Za-z-]+)*)?$"
)
MAX_EXTRA: Final = 32
MAX_CAPACITIES: Final = 32
_PARTS: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?")


def dra_version(text: str) -> str | None:
    """`570.148.08` -> `570.148.8`, `12.8` -> `12.8.0`: the version as a ResourceSlice takes it (semver 2.0.0, three
    parts without leading zeros). None where the text is no dotted number of up to three parts."""
    match = _PARTS.fullmatch(text.strip())
    return None if match is None else ".".join(str(int(part or "0")) for part in match.groups())
