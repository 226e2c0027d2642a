"""What a start leaves out does not stay left out."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from nodedevices_common.loading import quickly


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.unfreeze()
    gc.enable()


def test_the_garbage_collector_rests_in_the_block_and_works_again_after_it_or_an_error() -> None:
    with quickly():
        assert not gc.isenabled()
        with quickly():
            pass
        assert not gc.isenabled(), "the outer block goes on"
    assert gc.isenabled()
    with pytest.raises(ValueError, match="no such page"), quickly():
        raise ValueError("no such page")
    assert gc.isenabled()
