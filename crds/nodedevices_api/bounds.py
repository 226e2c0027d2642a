"""Bounds that a probe's line and the contract share: what a line may say, the agent can report.

This module imports nothing, because a probe is as small as it can be. The contract's types (`fields`) and the line's
(nodedevices_plugin.probes.protocol) are made of these; a line that the reader accepted never fails a report.
"""

from typing import Final

INT32_MAX: Final = 2**31 - 1
MAX_DEVICES: Final = 64  # of one node
MAX_PARTITIONS: Final = 64  # of one device
MAX_INDEX: Final = 1023
MAX_NUMA_NODE: Final = 1023
MAX_MINOR: Final = (1 << 20) - 1  # the kernel's minor numbers have 20 bits
DEVICE_ID_PATTERN: Final = r"^[A-Za-z0-9._:-]+$"
MAX_DEVICE_ID: Final = 96
WORD_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9]{0,63}$"  # a reason, an action, a kind
