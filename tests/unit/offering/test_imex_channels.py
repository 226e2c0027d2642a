from __future__ import annotations

import pytest
from nodedevices_plugin.model import PlanError
from nodedevices_plugin.vendors.nvidia import nodes
from support.cases import cases

NODE = "/dev/nvidia-caps-imex-channels/channel0"


@cases("values", [], ["0"], [0], ["0", "0"], [" 0 "])
def test_no_channel_or_channel_0_may_be_selected(values: list[str | int]) -> None:
    assert nodes.imex_channel_ids(values) == ((0,) if values else ())


@cases("values", [1], ["1"], [0, 1], ["x"], ["-1"], [""], ["00"])
def test_another_channel_is_refused(values: list[str | int]) -> None:
    with pytest.raises(PlanError, match=r"imex\.channelIDs: .*: only channel 0 can be requested; give \[0\] or \[\]"):
        nodes.imex_channel_ids(values)


def test_a_channel_that_the_node_has_not_is_left_out_or_refused_where_it_is_required() -> None:
    assert nodes.imex_present((0,), {NODE}, required=True) == (0,)
    assert nodes.imex_present((0,), set(), required=False) == ()
    assert nodes.imex_present((), set(), required=True) == ()
    with pytest.raises(PlanError, match=r"imex\.channelIDs: 0: .*channel0 does not exist .* imex\.required to false"):
        nodes.imex_present((0,), set(), required=True)
