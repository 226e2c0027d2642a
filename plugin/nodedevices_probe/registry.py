"""All kinds of hardware that `nodedevices-probe` reads, and all programs that it runs for the agent: a line each."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_probe.amd import AMD
from nodedevices_probe.fpga import FPGA_PROBE
from nodedevices_probe.generic import GENERIC
from nodedevices_probe.intel import INTEL
from nodedevices_probe.kind import ProbeKind
from nodedevices_probe.kmsg import KMSG
from nodedevices_probe.nic import NIC
from nodedevices_probe.nvidia import NVIDIA_CTK, NVML
from nodedevices_probe.programs import Program
from nodedevices_probe.remote import REMOTE
from nodedevices_probe.simulated import SIMULATED

KINDS: Mapping[str, ProbeKind] = {
    kind.name: kind
    for kind in (
        NVML,
        AMD,
        INTEL,
        FPGA_PROBE,
        NIC,
        GENERIC,
        REMOTE,
        KMSG,
        SIMULATED,
    )
}
PROGRAMS: Mapping[str, Program] = {program.name: program for program in (NVIDIA_CTK,)}
