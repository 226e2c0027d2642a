from __future__ import annotations

from datetime import timedelta

from hypothesis import given, strategies as st
from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_plugin.model import Inventory
from nodedevices_plugin.pipeline import inventory
from nodedevices_plugin.pipeline.inventory import MISSING_KEPT, TOO_MANY_DEVICES
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, Readings
from support.facts import START, gpu, gpu_id, mig_id, partition, silent_gpu, snapshot, well


def after(previous: Inventory, *devices: DeviceFact, seconds: float = 1, **rest: object) -> Inventory:
    line = {key: rest.pop(key) for key in ("driver", "boot_id") if key in rest}
    return inventory.update(
        previous,
        snapshot(*devices, **line),
        now=START + timedelta(seconds=seconds),
        monotonic=seconds,
        **rest,  # type: ignore[arg-type]
    )


def present(found: Inventory) -> dict[str, bool]:
    return {device.fact.id: device.present for device in found.devices}


def test_a_device_comes_goes_and_comes_back_by_its_id() -> None:
    found = after(after(Inventory(), gpu(0)), gpu(0), gpu(1))
    assert present(found) == {gpu_id(0): True, gpu_id(1): True}
    found = after(after(Inventory(), gpu(0), gpu(1)), gpu(0), seconds=5)
    gone = found.devices[1]
    assert (gone.present, gone.fact, gone.last_seen) == (False, gpu(1), START + timedelta(seconds=5))
    found = after(after(Inventory(), gpu(0), gpu(1)), gpu(0))
    back = after(found, gpu(0), gpu(1, index=7))
    assert present(back) == {gpu_id(0): True, gpu_id(1): True}
    assert back.devices[1].fact.index == 7


def test_devices_are_ordered_by_index_and_dropped_between_lines_when_removal_is_confirmed() -> None:
    found = after(Inventory(), gpu(2), gpu(0), gpu(1))
    assert [device.fact.index for device in found.devices] == [0, 1, 2]
    shifted = after(found, gpu(0), gpu(2, index=1))  # GPU 1 is gone and NVML counts anew
    assert [device.fact.id for device in shifted.devices] == [gpu_id(0), gpu_id(1), gpu_id(2)]
    gone = after(after(Inventory(), gpu(0), gpu(1)), gpu(0))
    left = inventory.release(gone, held_partitions=frozenset(), removed=frozenset({gpu_id(1)}))
    assert present(left) == {gpu_id(0): True}


def test_a_lost_device_keeps_what_was_known_of_it_or_the_little_it_says() -> None:
    known = after(Inventory(), gpu(0, partitions=(partition(0, 0),), mig_enabled=True))
    bare = silent_gpu(0, lost=True)
    found = after(known, bare).devices[0]
    assert found.fact.readings.lost
    assert (found.fact.product_name, found.fact.partitions) == ("NVIDIA H100 80GB HBM3", (partition(0, 0),))
    bare = silent_gpu(0, error="timeout")
    assert after(Inventory(), bare).devices[0].fact == bare


def test_while_the_driver_is_away_nothing_goes_missing_is_back_or_forgotten() -> None:
    for state in (DriverState.NOT_LOADED, DriverState.VERSION_MISMATCH):
        found = after(after(Inventory(), gpu(0)), driver=Driver(state=state))
        assert present(found) == {gpu_id(0): True}
        assert found.driver == Driver(state=state)
    gone = after(after(Inventory(), gpu(0), gpu(1)), gpu(0))
    found = after(gone, driver=Driver(state=DriverState.NOT_LOADED))
    assert present(found) == {gpu_id(0): True, gpu_id(1): False}
    missing = after(after(Inventory(), gpu(0), seconds=0), seconds=10)
    away = Driver(state=DriverState.NOT_LOADED)
    assert present(after(missing, seconds=10**6, driver=away, forget_missing_seconds=60)) == {gpu_id(0): False}


def test_the_time_of_a_missing_device_begins_when_a_line_does_not_list_it() -> None:
    """Nobody knows when it went: the first line that does not list it begins the count."""
    first = after(after(Inventory(), gpu(0), seconds=0), seconds=3600, forget_missing_seconds=60)
    assert present(first) == {gpu_id(0): False}
    assert present(after(first, seconds=3660, forget_missing_seconds=60)) == {}
    back = after(after(after(Inventory(), gpu(0), seconds=0), seconds=10), gpu(0), seconds=60)
    again = after(back, seconds=70, forget_missing_seconds=60)
    assert present(again) == {gpu_id(0): False}
    assert present(after(again, seconds=129, forget_missing_seconds=60)) == {gpu_id(0): False}


def test_a_vanished_mig_device_that_is_held_stays_also_when_its_gpu_is_missing() -> None:
    both = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    one = gpu(0, partitions=(partition(0, 1),), mig_enabled=True)
    held = frozenset({mig_id(0, 0)})
    found = after(after(Inventory(), both), one, held_partitions=held).devices[0]
    assert found.departed_partitions == {mig_id(0, 0)}
    assert {part.id for part in found.fact.partitions} == {mig_id(0, 0), mig_id(0, 1)}
    again = after(after(after(Inventory(), both), one, held_partitions=held), one, held_partitions=held).devices[0]
    assert again.departed_partitions == {mig_id(0, 0)}
    cut = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    found = after(after(Inventory(), cut), held_partitions=frozenset({mig_id(0, 1)})).devices[0]
    assert not found.present
    assert found.departed_partitions == {mig_id(0, 1)}
    assert [part.id for part in found.fact.partitions] == [mig_id(0, 1)]


def test_a_mig_device_that_nobody_holds_is_dropped_and_one_that_comes_back_has_not_departed() -> None:
    both = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    one = gpu(0, partitions=(partition(0, 1),), mig_enabled=True)
    held = after(after(Inventory(), both), one, held_partitions=frozenset({mig_id(0, 0)}))
    assert after(held, one).devices[0].fact.partitions == (partition(0, 1),)
    released = inventory.release(held, held_partitions=frozenset())
    assert released.devices[0].fact.partitions == (partition(0, 1),)
    assert released.devices[0].departed_partitions == frozenset()
    ids = frozenset({mig_id(0, 0)})
    found = after(after(after(Inventory(), both), one, held_partitions=ids), both, held_partitions=ids)
    assert found.devices[0].departed_partitions == frozenset()


def test_what_the_state_file_remembers_is_missing_once_a_line_does_not_list_it() -> None:
    known = after(Inventory(), gpu(0), gpu(1))
    restored = inventory.restore(known.devices, boot_id="boot-1")
    assert restored.line_monotonic is None
    assert restored.driver is None
    assert present(after(restored, gpu(0))) == {gpu_id(0): True, gpu_id(1): False}


def test_of_too_many_devices_the_faulty_ones_are_kept_and_those_left_out_are_named() -> None:
    here = [gpu(index, readings=well()) for index in range(MAX_DEVICES)]
    known = after(Inventory(), *here)
    lost = gpu(MAX_DEVICES + 1, readings=Readings(lost=True))
    found = after(known, *here[1:], gpu(MAX_DEVICES, readings=well()), lost, seconds=2)  # the first has left
    states = present(found)
    assert len(states) == MAX_DEVICES
    assert (states[gpu_id(0)], states[lost.id]) == (False, True)
    left_out = [gpu_id(MAX_DEVICES - 1), gpu_id(MAX_DEVICES)]
    assert not states.keys() & set(left_out)
    [problem] = found.problems
    assert problem.code == TOO_MANY_DEVICES
    assert problem.message.endswith(
        f"258 devices, of which 256 are kept, faulty ones first; without {', '.join(left_out)}"
    )


def test_devices_beyond_what_a_status_holds_are_cut_and_named_and_ghosts_put_out_few() -> None:
    before = after(Inventory(), *(gpu(index + 1000, readings=well()) for index in range(MAX_DEVICES)))
    found = after(before, *(gpu(index, readings=well()) for index in range(MAX_DEVICES)), seconds=2)
    states = list(present(found).values())
    assert (states.count(True), states.count(False)) == (MAX_DEVICES - MISSING_KEPT, MISSING_KEPT)
    parts = {
        name: after(Inventory(), *(gpu(index + first, readings=well()) for index in range(200)))
        for name, first in (("a", 0), ("b", 1000))
    }
    found = inventory.together(parts, complete=True)
    assert (len(found.devices), [each.code for each in found.problems]) == (MAX_DEVICES, [TOO_MANY_DEVICES])
    many = [gpu(index, readings=well()) for index in range(MAX_DEVICES + 3)]
    found = after(Inventory(), *many)
    assert [device.fact.index for device in found.devices] == list(range(MAX_DEVICES))
    assert [problem.code for problem in found.problems] == [TOO_MANY_DEVICES]


@given(st.lists(st.frozensets(st.integers(0, 9), max_size=10), max_size=8))
def test_a_device_is_present_exactly_when_the_last_line_listed_it(lines: list[frozenset[int]]) -> None:
    found = Inventory()
    for number, listed in enumerate(lines):
        found = after(found, *(gpu(index) for index in listed), seconds=number)
    ever = frozenset().union(*lines) if lines else frozenset()
    last = lines[-1] if lines else frozenset()
    assert present(found) == {gpu_id(index): index in last for index in ever}
    assert [device.fact.index for device in found.devices] == sorted(ever)
