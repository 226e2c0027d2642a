"""All kinds of hardware that `nodedevices-probe` reads, and all programs that it runs for the agent: a line each."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_probe.amd.kind import AMD
from nodedevices_probe.fpga.kind import FPGA
from nodedevices_probe.generic.kind import GENERIC
from nodedevices_probe.intel.kind import INTEL
from nodedevices_probe.kind import ProbeKind
from nodedevices_probe.kmsg.kind import KMSG
from nodedevices_probe.nic.kind import NIC
from nodedevices_probe.nvidia.ctk import NVIDIA_CTK
from nodedevices_probe.nvidia.kind import NVML
from nodedevices_probe.programs import Program
from nodedevices_probe.remote.kind import REMOTE
from nodedevices_probe.simulated.kind import SIMULATED

KINDS: Mapping[str, ProbeKind] = {
    kind.name: kind
    for kind in (
        NVML,
        AMD,
        INTEL,
        FPGA,
        NIC,
        GENERIC,
        REMOTE,
        KMSG,
        SIMULATED,
    )
}
PROGRAMS: Mapping[str, Program] = {program.name: program for program in (NVIDIA_CTK,)}
