"""Settings that have no effect on a node where another plugin serves the kubelet (serving.mode Observe).

Whether a node observes is what its agent says (status.configuration.serving): a flag or a file may say so as well as a
policy, and a change of the mode may wait for pods.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_common.raw import Raw, mapping, mappings

OBSERVE = "Observe"
SERVED = ("resources", "sharing", "partitions", "injection")  # sections that say what is served to the kubelet, and how
NO_TAINT = (
    "faults.evictMode evicts no pod whose device another plugin goes on offering while serving.mode is Observe, since "
    "the next pod would get it; set faults.taintEffect"
)


def observes(status: Raw) -> bool:
    """True when the agent of this status only observes."""
    return mapping(status.get("configuration")).get("serving") == OBSERVE


def would_observe(now: Raw, then: Raw, *, observing: bool) -> bool:
    """True when the node would observe with the sections `then` in the place of `now`; what no policy says stays."""
    if "serving" in then:
        return mapping(then["serving"]).get("mode") == OBSERVE
    return observing and "serving" not in now


def without_effect(config: Raw) -> Iterator[tuple[str, str]]:
    """Yield each section, in wire form, that has no effect on a node that observes, or not all of it, with that as a
    text."""
    for section in SERVED:
        if section in config:
            yield section, f"{section}.* has no effect while serving.mode is Observe"
    faults = mapping(config.get("faults"))
    rules = mappings(faults.get("rules"))
    modes = (rule.get("evictMode", "Never") for rule in (faults, *rules))
    effects = (rule.get("taintEffect", "None") for rule in (faults, *rules))
    if any(mode != "Never" for mode in modes) and all(effect == "None" for effect in effects):
        yield "faults", NO_TAINT
