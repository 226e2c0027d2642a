"""NVIDIA's GPUs: attributes that only they have, as a line says them, by name; the names of MIG devices; the command
`nodedevices-probe nvml` with its flags; and NVIDIA's program that makes a CDI specification.

Probes write these, and NVIDIA's part of the agent reads them back; no other module knows them.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_api.bounds import MAX_DEVICE_NAME, dra_version

from nodedevices_probe.kind import DRIVER_ROOT, TELEMETRY_FLAG, ProbeKind, any_of, exists, on_pci
from nodedevices_probe.node.sysfs import ACCELERATOR_CLASSES
from nodedevices_probe.programs import Program
from nodedevices_probe.protocol import Attribute, DeviceFact, Partition

VENDOR = "nvidia"
# Not for computing: the display adapter of a DGX Station (go-nvlib skips the same names).
DISPLAY_PRODUCTS = frozenset({"DGX Display", "NVIDIA DGX Display"})
CUDA_COMPUTE_CAPABILITY = "cudaComputeCapability"
MIG_CAPABLE = "migCapable"
MIG_ENABLED = "migEnabled"
# GPU instance profiles (NVML's numbers) by slices, of a card that has no more to say; they are part of a MIG's name.
PROFILE_IDS = {1: 19, 2: 14, 3: 9, 4: 5, 7: 0}
# health.recoveryAction, by the numbers of NVML_GPU_RECOVERY_ACTION_*
RECOVERY_ACTIONS = (
    "None",
    "ResetDevice",
    "RebootNode",
    "DrainP2P",
    "DrainAndReset",
    "RecoverIMEXDomain",
    "ResetBus",
    "RebootSystem",
)
FABRIC_STATES = ("NotSupported", "NotStarted", "InProgress", "Completed")  # by the numbers of NVML_GPU_FABRIC_STATE_*


def attributes(
    *, compute_capability: str = "", mig_capable: bool | None = None, mig_enabled: bool | None = None
) -> dict[str, Attribute]:
    """The `extra` of a GPU; what is not known is left out. `compute_capability`: 9.0."""
    capability = dra_version(compute_capability)
    found = {
        CUDA_COMPUTE_CAPABILITY: Attribute(version=capability) if capability else None,
        MIG_CAPABLE: None if mig_capable is None else Attribute(boolean=mig_capable),
        MIG_ENABLED: None if mig_enabled is None else Attribute(boolean=mig_enabled),
    }
    return {name: value for name, value in found.items() if value is not None}


def compute_capability(fact: DeviceFact) -> str:
    """Return the compute capability, 9.0; "" where the GPU does not say."""
    value = fact.extra.get(CUDA_COMPUTE_CAPABILITY)
    return ".".join((value.version or "").split(".")[:2]) if value is not None else ""


def mig_enabled(fact: DeviceFact) -> bool | None:
    """Return whether MIG mode is on; None where the GPU does not say."""
    value = fact.extra.get(MIG_ENABLED)
    return None if value is None else value.boolean


def fills_instance(part: Partition) -> bool:
    """True when a MIG device has all of its GPU instance: a smaller one says so in its profile, 1c.3g.40gb."""
    first, dot, _ = part.profile.partition(".")
    return not (dot and first.endswith("c"))


def counts(values: Mapping[str, int | None]) -> dict[str, str]:
    """Capacities that are numbers; what is not known is left out."""
    return {name: str(value) for name, value in values.items() if value is not None}


def mig_name(gpu: str, profile: str, profile_id: int, start: int, ci: int) -> str | None:
    """gpu-0-mig-1g10gb-19-0, as NVIDIA's DRA driver calls it; with the compute instance where it is not the first.
    None where that is too long for a name."""
    plain = "".join(char for char in profile.lower() if char.isalnum())
    name = f"{gpu}-mig-{plain}-{profile_id}-{start}{f'-{ci}' if ci else ''}"
    return name if len(name) <= MAX_DEVICE_NAME else None


NVML = ProbeKind(
    name="nvml",
    help="NVIDIA GPUs, by the driver's library libnvidia-ml.so.1",
    flags={
        DRIVER_ROOT: {
            "default": "/driver-root",
            "metavar": "DIR",
            "help": "search the library below this mounted root of the driver first (default: /driver-root)",
        },
        **TELEMETRY_FLAG,
    },
    reads="nodedevices_probe.nvidia.probe",
    interval="between queries of the driver; events are reported at once",
    passed_on={DRIVER_ROOT: DRIVER_ROOT, "telemetry": "telemetry"},
    opens=frozenset({DRIVER_ROOT}),
    # With a driver or without; WSL shows its GPU on no PCI bus.
    present=any_of(on_pci("0x10de", ACCELERATOR_CLASSES), exists("proc/driver/nvidia"), exists("dev/dxg")),
)


NVIDIA_CTK = Program(
    name="nvidia-ctk",
    command=("cdi", "generate", "--format=json"),
    flags=frozenset({"vendor", "class", "device-name-strategy", "nvidia-ctk-path", "feature-flag", "disable-hook"}),
    roots=("driver-root", "dev-root"),
    places=("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit"),
)
