from __future__ import annotations

from collections import Counter

import pytest
from nodedevices_plugin.health.actions import asks_for_nothing
from nodedevices_plugin.health.catalogue import CATALOGUE, XidClass, look_up


def test_the_catalogue_has_every_number_of_nvidias_that_is_in_use() -> None:
    # NVIDIA's catalogue of October 2025: 172 entries, of which 63 are "Unused".
    assert len(CATALOGUE) == 172 - 63
    buckets = Counter(row.immediate for row in CATALOGUE.values())
    assert buckets["RESTART_APP"] == 48
    assert buckets["IGNORE"] == 19
    assert buckets["RESET_GPU"] == 14
    assert (buckets["RESTART_BM"], buckets["RESTART_VM"]) == (1, 1)


@pytest.mark.parametrize(
    ("number", "kind", "action", "domain"),
    [
        (13, XidClass.APPLICATION, "RestartApp", "Application"),
        (31, XidClass.APPLICATION, "RestartApp", "Application"),
        (43, XidClass.COUNTED, "None", "Device"),
        (45, XidClass.CORRELATING, "None", "Device"),
        (48, XidClass.CORRELATING, "ResetGPU", "Device"),
        (54, XidClass.FATAL, "Inspect", "Device"),
        (62, XidClass.FATAL, "ResetGPU", "Device"),
        (63, XidClass.COUNTED, "None", "Device"),
        (64, XidClass.FATAL, "ResetGPU", "Device"),
        (74, XidClass.CORRELATING, "ResetGPU", "Device"),
        (79, XidClass.FATAL, "RebootNode", "Device"),
        (94, XidClass.APPLICATION, "RestartApp", "Application"),
        (95, XidClass.FATAL, "ResetGPU", "Device"),
        (99, XidClass.APPLICATION, "RestartApp", "Application"),
        (109, XidClass.FATAL, "ResetGPU", "Device"),
        (119, XidClass.FATAL, "ResetGPU", "Device"),
        (135, XidClass.APPLICATION, "RestartApp", "Application"),
        (142, XidClass.SUSPECT, "Inspect", "Device"),
        (147, XidClass.CORRELATING, "Inspect", "Device"),
        (151, XidClass.FATAL, "RebootNode", "Node"),
        (154, XidClass.COUNTED, "None", "Device"),
        (172, XidClass.SUSPECT, "None", "Device"),
    ],
)
def test_an_xid_is_judged_as_researched(number: int, kind: XidClass, action: str, domain: str) -> None:
    row = look_up(number)
    assert (row.kind, row.action, row.domain) == (kind, action, domain)


@pytest.mark.parametrize("number", [0, 1, 61, 123, 173, 999])
def test_an_unlisted_xid_is_told_and_not_taken_for_harmless(number: int) -> None:
    assert number not in CATALOGUE
    assert look_up(number).kind is XidClass.SUSPECT


def test_every_row_says_what_it_means_and_where_that_comes_from() -> None:
    for row in CATALOGUE.values():
        assert row.mnemonic
        assert row.meaning
        assert row.source in {"catalog", "field"}


def test_a_fatal_xid_asks_for_something() -> None:
    for row in CATALOGUE.values():
        assert row.kind is not XidClass.FATAL or not asks_for_nothing(row.action)
