from __future__ import annotations

import pytest
from nodedevices_common.errors import InputError
from nodedevices_plugin.model import PlanError
from nodedevices_plugin.settings.effective import resolve
from nodedevices_plugin.settings.file import parse as parse_file
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors.base import NodeView, value_of
from nodedevices_plugin.vendors.nvidia.flags import NvidiaSettings
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from support.cases import cases

NODE = "/dev/nvidia-caps-imex-channels/channel0"
LOCAL = parse(["--standalone"], {})


@cases("values", "[]", '["0"]', "[0]", "[0, 0]")
def test_no_channel_or_channel_0_may_be_selected(values: str) -> None:
    effective = resolve(LOCAL, parse_file(f"imex: {{channelIDs: {values}}}".encode()), None)
    assert value_of(effective.node.vendors["nvidia"], NvidiaSettings).imex_channels == (() if values == "[]" else (0,))


@cases("value", "1", "0,1", "x", "-1", "00")
def test_another_channel_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"--imex-channel-ids: .* is not allowed; .*0"):
        parse(["--standalone", f"--imex-channel-ids={value}"], {})
    with pytest.raises(InputError, match=r"imex\.channelIDs: .* is not allowed; .*0"):
        parse_file(f"imex: {{channelIDs: ['{value}']}}".encode())


def test_a_channel_that_the_node_has_not_is_left_out_or_refused_where_it_is_required() -> None:
    given = NvidiaSettings(imex_channels=(0,), imex_required=True)
    assert given.host({NODE}).imex_channels == (0,)
    assert given.host(set()).imex_channels == ()
    Nvidia().check(NodeView(local=given, existing={NODE}))
    Nvidia().check(NodeView(local=NvidiaSettings(imex_channels=(0,))))
    Nvidia().check(NodeView(local=NvidiaSettings(imex_required=True)))
    with pytest.raises(PlanError, match=r"imex\.channelIDs: 0: .*channel0 does not exist .* imex\.required to false"):
        Nvidia().check(NodeView(local=given))
