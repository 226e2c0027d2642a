"""Variables with `$(WORD)` in them, and directories of the node, that a policy adds to containers with shares of
memory. For a limiter library, or a framework that reads its limit from a variable of its own.

A directory is mounted read-only, and only at or below one that the node's own flag allows, at the time of each
Allocate: the right to write policies does not include the right to read the node. Paths are compared as they are
written, and have no `.` and `..`; links are followed by the container runtime, so that what an allowed directory has is
for the node's administrator alone to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath

from nodedevices_api.container import ContainerTemplate
from nodedevices_common.quantity import MEBIBYTE

from nodedevices_plugin.model import AllocationError, ContainerEdits, Mount, PlanError
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.memory.grant import MemoryGrant
from nodedevices_plugin.sharing.memory.variables import fraction

MOUNT_DIR = "container-mount-dir"  # the flag that allows a directory
_WORDS: Mapping[str, Callable[[MemoryGrant], str]] = {
    "MEMORY_LIMIT_MIB": lambda grant: str(grant.limit_bytes // MEBIBYTE),
    "MEMORY_LIMIT_BYTES": lambda grant: str(grant.limit_bytes),
    "MEMORY_TOTAL_MIB": lambda grant: str(grant.total_bytes // MEBIBYTE),
    "MEMORY_FRACTION": lambda grant: fraction(grant.limit_bytes, grant.total_bytes),
    "MEMORY_UNITS": lambda grant: str(grant.units),
    "DEVICE_ID": lambda grant: grant.device,
    "DEVICE_INDEX": lambda grant: grant.index,
}
# Any other word stays as it is; the API server and the agent accept none (nodedevices_api.container).
_WORD = re.compile(rf"\$\(({'|'.join(_WORDS)})\)")


def template(given: ContainerTemplate | None) -> ContainerEdits:
    """Return the text as the policy has it."""
    if given is None:
        return ContainerEdits()
    mounts = tuple(Mount(container_path=each.container_path, host_path=each.host_path) for each in given.mounts)
    return ContainerEdits(envs={each.name: each.value for each in given.env}, mounts=mounts)


def edits(wanted: ContainerEdits, grant: MemoryGrant, settings: Settings) -> ContainerEdits:
    """Return what one container gets. Raises AllocationError where the node does not allow a directory (any more)."""
    if not_allowed := _not_allowed(wanted, allowed(settings)):
        raise AllocationError(
            f"{grant.resource}: its policy mounts {not_allowed}, which this node does not allow (--{MOUNT_DIR}); the "
            "cluster's administrator has to correct one of them."
        )
    envs = {name: _WORD.sub(lambda found: _word(found, grant), value) for name, value in wanted.envs.items()}
    return ContainerEdits(envs=envs, mounts=wanted.mounts)


def refusal(wanted: ContainerEdits, settings: Settings) -> PlanError | None:
    """Return why this node does not give what the policy mounts; None: it does."""
    some = allowed(settings)
    not_allowed = _not_allowed(wanted, some)
    if not not_allowed:
        return None
    hint = f"this node allows {' and '.join(some)}" if some else "this node allows no directory"
    return PlanError("sharing.resources[].container.mounts", not_allowed, f"{hint} (--{MOUNT_DIR})")


def to_setting(directories: Iterable[str]) -> Settings:
    return {MOUNT_DIR: "\n".join(directories)}


def allowed(settings: Settings) -> tuple[str, ...]:
    return tuple(settings.get(MOUNT_DIR, "").splitlines())


def _not_allowed(wanted: ContainerEdits, directories: tuple[str, ...]) -> str:
    """Return the first path that is not at or below one of them; empty: none."""
    paths = (each.host_path for each in wanted.mounts)
    return next((path for path in paths if not any(PurePosixPath(path).is_relative_to(one) for one in directories)), "")


def _word(found: re.Match[str], grant: MemoryGrant) -> str:
    """Return the word's value."""
    return _WORDS[found[1]](grant)
