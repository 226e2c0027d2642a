"""The built-in defaults: what holds where neither a policy nor the node's own settings say anything.

They are the Python defaults of the fields in `sections`; this module fills in whole sections. One depends on another
field: with MPS a container may have one share unless a policy says otherwise, as NVIDIA's plugin has it.
"""

from __future__ import annotations

from pydantic import Field

from nodedevices_api.sections import (
    CapacityEntries,
    Discovery,
    ExpectEntries,
    Faults,
    Health,
    Idle,
    Injection,
    Labels,
    Partitions,
    Resources,
    Sections,
    Serving,
    Sharing,
)

_FAIL = "fail_requests_greater_than_one"


class Resolved(Sections):
    """Sections of which none is absent."""

    serving: Serving = Field(default=Serving())
    resources: Resources = Field(default=Resources())
    sharing: Sharing = Field(default=Sharing())
    partitions: Partitions = Field(default=Partitions())
    injection: Injection = Field(default=Injection())
    health: Health = Field(default=Health())
    faults: Faults = Field(default=Faults())
    capacity: CapacityEntries = Field(default=())
    labels: Labels = Field(default=Labels())
    discovery: Discovery = Field(default=Discovery())
    expect: ExpectEntries = Field(default=())
    idle: Idle = Field(default=Idle())


def with_defaults(sections: Sections) -> Resolved:
    """The sections with every absent section, and every absent field of one, at its built-in default.

    Every field of the result counts as set: `to_dict` writes all of it (what has no value is left out).
    """
    given = {name: value for name in Sections.model_fields if (value := getattr(sections, name)) is not None}
    sharing = sections.sharing
    if sharing is not None and sharing.strategy == "mps" and _FAIL not in sharing.model_fields_set:
        given["sharing"] = sharing.model_copy(update={_FAIL: True})
    # The sections are valid: a strategy that only this agent knows is one, too.
    context = {"strategies": (sharing.strategy,)} if sharing is not None else None
    return Resolved.model_validate(Resolved.model_construct(**given).model_dump(), by_name=True, context=context)
