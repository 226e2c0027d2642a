"""Settings of a policy for the containers that have shares of memory: variables and directories of the node, such as a
library that enforces limits needs.

Values may hold `$(WORD)` for each word of WORDS, which the agent replaces by what the container has. What decides which
devices a container sees, which programs or libraries it loads, or what the agent itself says to it, no policy sets.
Directories are read-only for the container, and the node's own flag says which may be given at all.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints

from nodedevices_api.base import Rule, Strict
from nodedevices_api.fields import HOST_PATH_PATTERN, VARIABLE_PATTERN, ListType

# What a value may hold, as $(WORD), and what the container gets in its place.
WORDS = {
    "MEMORY_LIMIT_MIB": "its limit in MiB",
    "MEMORY_LIMIT_BYTES": "its limit in bytes",
    "MEMORY_TOTAL_MIB": "all memory of the device, in MiB",
    "MEMORY_FRACTION": "the limit by the total, four decimals, rounded down",
    "MEMORY_UNITS": "how many shares it has",
    "DEVICE_ID": "the device's id",
    "DEVICE_INDEX": "the device's index",
}
_TEMPLATE = re.compile(r"\$\(([^)]*)\)?")
_VALUE = rf"^([^$]|[$]+[^$(]|[$]+[(]({'|'.join(WORDS)})[)])*[$]*$"
# The agent's own and its presets', which devices are visible, and what every program of the container is loaded from.
_RESERVED = r"^(NVIDIA_.*|.*_VISIBLE_DEVICES|CUDA_MPS_.*|NODEDEVICES_.*|ALIYUN_COM_.*|LD_.*|PATH)$"
_SYSTEM = r"^/(proc|sys|dev)(/|$)"

VariableName = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, min_length=1, max_length=128)]
HostPath = Annotated[str, StringConstraints(pattern=HOST_PATH_PATTERN, min_length=2, max_length=256)]


def unknown_words(value: str) -> list[str]:
    """Return what stands in `$(...)` and is none of WORDS."""
    return [
        f"$({found[1]})" for found in _TEMPLATE.finditer(value) if not found[0].endswith(")") or found[1] not in WORDS
    ]


class ContainerVariable(Strict):
    """A variable of every container with shares of the resource."""

    name: VariableName = Field(
        description="Name of the variable. Refused: NVIDIA_*, *_VISIBLE_DEVICES, CUDA_MPS_*, NODEDEVICES_*, "
        "ALIYUN_COM_*, LD_*, PATH."
    )
    value: Annotated[str, StringConstraints(max_length=512)] = Field(
        description=f"Value; can contain {', '.join(f'$({word})' for word in WORDS)}, filled in for each container."
    )

    cel_rules = (
        Rule(
            f"!self.name.matches('{_RESERVED}')",
            "a policy does not set what the agent sets, which devices are visible, or what programs are loaded from; "
            "choose another name",
            lambda it: re.match(_RESERVED, it.name) is None,
            found="name %s",
            values="self.name",
            describe=lambda it: f"name {it.name}",
        ),
        Rule(
            f"self.value.matches('{_VALUE}')",
            f"a value may hold {', '.join(f'$({word})' for word in WORDS)}",
            lambda it: not unknown_words(it.value),
            found="%s is %s",
            values="self.name, self.value",
            describe=lambda it: f"{it.name} has {', '.join(unknown_words(it.value))}",
        ),
    )


class ContainerMount(Strict):
    """A directory or file of the node, read-only in every container with shares of the resource."""

    host_path: HostPath = Field(
        description="Path on the node, at or below a directory that the agent's flag --container-mount-dir allows."
    )
    container_path: HostPath = Field(description="Path in the container; not in /proc, /sys or /dev.")

    cel_rules = (
        Rule(
            f"!self.containerPath.matches('{_SYSTEM}')",
            "a container's /proc, /sys and /dev are the container runtime's; choose another path",
            lambda it: re.match(_SYSTEM, it.container_path) is None,
            found="containerPath %s",
            values="self.containerPath",
        ),
    )


class ContainerTemplate(Strict):
    """What containers with shares get, beside what the agent gives them."""

    env: Annotated[tuple[ContainerVariable, ...], Field(max_length=16), ListType("map", "name")] = Field(
        default=(), description="Variables for the container; its own variables override them."
    )
    mounts: Annotated[tuple[ContainerMount, ...], Field(max_length=16), ListType("map", "container_path")] = Field(
        default=(), description="Directories and files of the node, read-only."
    )
