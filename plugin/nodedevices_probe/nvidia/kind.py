"""The command `nodedevices-probe nvml` and its flags."""

from __future__ import annotations

from argparse import ArgumentParser

from nodedevices_probe.kind import DRIVER_ROOT, ProbeKind, add_telemetry
from nodedevices_probe.node.presence import any_of, exists, on_pci
from nodedevices_probe.node.sysfs import ACCELERATOR_CLASSES


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--driver-root-ctr-path",
        default="/driver-root",
        metavar="DIR",
        help="search the library below this mounted root of the driver first (default: /driver-root)",
    )
    add_telemetry(parser)


NVML = ProbeKind(
    name="nvml",
    help="NVIDIA GPUs, by the driver's library libnvidia-ml.so.1",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.nvidia.probe",
    interval="between queries of the driver; events are reported at once",
    passed_on={DRIVER_ROOT: DRIVER_ROOT, "telemetry": "telemetry"},
    opens=frozenset({DRIVER_ROOT}),
    # With a driver or without; WSL shows its GPU on no PCI bus.
    present=any_of(on_pci("0x10de", ACCELERATOR_CLASSES), exists("proc/driver/nvidia"), exists("dev/dxg")),
)
