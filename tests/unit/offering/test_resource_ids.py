from __future__ import annotations

from hypothesis import given, strategies as st
from nodedevices_plugin.model import InventoryDevice, Unit, ids, resource_names
from nodedevices_plugin.vendors.base import Naming
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from support.cases import cases
from support.facts import START, gpu, partition


def test_an_id_of_a_share_is_written_as_nvidias_plugin_writes_it() -> None:
    assert ids.compose("GPU-5c89", 3) == "GPU-5c89::3"


@cases(
    ("text", "parts"),
    ("GPU-5c89", ("GPU-5c89", None)),
    ("GPU-5c89::0", ("GPU-5c89", 0)),
    ("MIG-5c89::12", ("MIG-5c89", 12)),
    ("GPU-5c89::", ("GPU-5c89::", None)),
    ("GPU-5c89::x", ("GPU-5c89::x", None)),
    ("GPU-5c89::1::2", ("GPU-5c89::1::2", None)),
    ("GPU-5c89::\u0663", ("GPU-5c89::\u0663", None)),
    ("", ("", None)),
)
def test_an_id_is_split_at_the_first_separator(text: str, parts: tuple[str, int | None]) -> None:
    assert ids.split(text) == parts


@given(st.from_regex(r"(GPU|MIG)-[0-9a-f-]{1,36}", fullmatch=True), st.integers(0, 16383))
def test_splitting_undoes_composing(base: str, replica: int) -> None:
    assert ids.split(ids.compose(base, replica)) == (base, replica)


def test_how_much_memory_is_held_is_in_the_ids_and_in_nothing_else() -> None:
    held = ["GPU-a::1Gi.0", "GPU-a::1Gi.17", "GPU-a::512Mi.3", "0000:07:00.0::2Gi.0", "MIG-b::256Mi.1"]
    others = [
        "GPU-a",
        "GPU-a::3",
        "GPU-a::core.4",
        "0000:07:00.0",
        "0000:07:00.0::1",
        "GPU-a::1Xi.1",
        "GPU-a::1Gi.x",
        "",
    ]
    gib = 1 << 30
    assert ids.memory_held([*held, *others]) == {"GPU-a": 5 * gib // 2, "0000:07:00.0": 2 * gib, "MIG-b": gib // 4}


def test_names_are_those_that_clusters_use() -> None:
    device = InventoryDevice(fact=gpu(0), present=True, last_seen=START)
    named = {
        profile: Nvidia().usual_name(Unit(device, partition(0, 0, profile=profile)), Naming(strategy="mixed"))
        for profile in ("1g.10gb", "1g.10gb+me", "1g.12gb-me")
    }
    assert named == {
        "1g.10gb": "nvidia.com/mig-1g.10gb",
        "1g.10gb+me": "nvidia.com/mig-1g.10gb.me",
        "1g.12gb-me": "nvidia.com/mig-1g.12gb-me",
    }
    assert resource_names.shared("nvidia.com/gpu") == "nvidia.com/gpu.shared"
