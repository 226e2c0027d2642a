"""Why a configuration cannot be carried out on this node."""

from __future__ import annotations


class PlanError(Exception):
    """A configuration that makes no sense here: the last good one stays in force, and this is shown where it was set.

    `field` is its place (`sharing.resources[nvidia.com/gpu].replicas`), `value` what stands there, `hint` what would
    be right.
    """

    def __init__(self, field: str, value: object, hint: str) -> None:
        self.field = field
        self.value = value
        self.hint = hint
        super().__init__(f"{field}: {value!s}: {hint}")
