"""nvidia-ctk, NVIDIA's program that makes a CDI specification: options of 1.14 and later; the last two flags are
1.18's."""

from __future__ import annotations

from nodedevices_probe.programs import Program

NVIDIA_CTK = Program(
    name="nvidia-ctk",
    command=("cdi", "generate", "--format=json"),
    flags=frozenset({"vendor", "class", "device-name-strategy", "nvidia-ctk-path", "feature-flag", "disable-hook"}),
    roots=("driver-root", "dev-root"),
    places=("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit"),
)
