"""What vendors and sharing modes may have besides is found by their classes, looked at once."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pytest
from nodedevices_plugin.model.optional import OptionalInterface
from nodedevices_plugin.sharing.registry import MODES
from nodedevices_plugin.vendors.registry import VENDORS

INTERFACES = OptionalInterface.__subclasses__()


@pytest.mark.parametrize("interface", INTERFACES, ids=[each.__name__ for each in INTERFACES])
def test_who_has_an_interface_is_who_has_its_members(interface: type) -> None:
    members = {name for name in vars(interface) if not name.startswith("_")}
    everybody = [*VENDORS.every, *MODES.modes]
    assert members
    assert [each for each in everybody if isinstance(each, interface)] == [
        each for each in everybody if all(hasattr(each, name) for name in members)
    ]


def test_a_class_is_looked_at_once() -> None:
    @runtime_checkable
    class Counts(OptionalInterface, Protocol):
        @property
        def count(self) -> int: ...

    looked = []

    class Counting:
        @property
        def count(self) -> int:
            looked.append(self)
            return 1

    class Silent: ...

    for _ in range(3):
        assert isinstance(Counting(), Counts)
        assert not isinstance(Silent(), Counts)
    assert len(looked) <= 1
