from __future__ import annotations

from collections import Counter

from nodedevices_plugin.health.rules import needs_no_action
from nodedevices_plugin.vendors.faults import Effect
from nodedevices_plugin.vendors.nvidia.xids import CATALOGUE, look_up
from support.cases import cases


def test_the_catalogue_has_the_numbers_of_nvidias_that_are_in_use() -> None:
    assert len(CATALOGUE) == 172 - 63
    actions = Counter(row.action for row in CATALOGUE.values() if row.source == "catalog")
    assert actions["RestartApp"] == 48  # "RESTART_APP"
    assert actions["RebootNode"] == 2  # "RESTART_BM", "RESTART_VM"
    assert actions["ResetDevice"] == 14 + 2  # "RESET_GPU", and the workflows of 48 and 74
    runs = "8 11 13 25 31-32 37-41 43-46 48 54 60 62-64 66-72 74-80 82-86 88-89 92-107 109-110 119-121 126-137 139-172"
    ends = [[int(end) for end in run.split("-")] for run in runs.split()]
    assert sorted(CATALOGUE) == [number for run in ends for number in range(run[0], run[-1] + 1)]
    assert all(number == row.number for number, row in CATALOGUE.items())


def test_an_xid_has_the_name_by_which_people_search_for_it() -> None:
    """The names of the driver's nverror.h begin with the part that failed."""
    parts = (
        "ALI C2C CHANNEL EXCESSIVE GPU GSP INFOROM NVLINK PBDMA PCIE PMU PSHC REDUCED RESOURCE ROBUST_CHANNEL SEC SEC2"
    )
    others = "SILENT SMBPBI UNCORRECTABLE UNRECOVERABLE VGPU"
    known = tuple(f"{part}_" for part in f"{parts} {others}".split())
    assert [row.mnemonic for row in CATALOGUE.values() if not row.mnemonic.startswith(known)] == []
    assert look_up(31).mnemonic == "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT"


@cases(
    ("number", "kind", "action", "domain"),
    (13, Effect.NOTICE, "RestartApp", "Application"),
    (31, Effect.NOTICE, "RestartApp", "Application"),
    (43, Effect.NOTICE, "RestartApp", "Application"),
    (45, Effect.UNDECIDED, "None", "Device"),
    (48, Effect.UNDECIDED, "ResetDevice", "Device"),
    (54, Effect.UNHEALTHY, "Inspect", "Device"),
    (62, Effect.UNHEALTHY, "ResetDevice", "Device"),
    (63, Effect.COUNTED, "None", "Device"),
    (64, Effect.UNHEALTHY, "ResetDevice", "Device"),
    (74, Effect.UNDECIDED, "ResetDevice", "Device"),
    (79, Effect.UNHEALTHY, "RebootNode", "Device"),
    (94, Effect.NOTICE, "RestartApp", "Application"),
    (95, Effect.UNHEALTHY, "ResetDevice", "Device"),
    (99, Effect.NOTICE, "RestartApp", "Application"),
    (109, Effect.UNHEALTHY, "ResetDevice", "Device"),
    (119, Effect.UNHEALTHY, "ResetDevice", "Device"),
    (135, Effect.NOTICE, "RestartApp", "Application"),
    (142, Effect.DEGRADED, "Inspect", "Device"),
    (147, Effect.UNDECIDED, "Inspect", "Device"),
    (151, Effect.UNHEALTHY, "RebootNode", "Node"),
    (154, Effect.COUNTED, "None", "Device"),
    (172, Effect.DEGRADED, "None", "Device"),
)
def test_an_xid_is_judged_as_researched(number: int, kind: Effect, action: str, domain: str) -> None:
    row = look_up(number)
    assert (row.effect, row.action, row.domain) == (kind, action, domain)


@cases("number", 0, 1, 61, 123, 173, 999)
def test_an_unlisted_xid_is_reported_and_not_taken_for_harmless(number: int) -> None:
    assert number not in CATALOGUE
    assert look_up(number).effect is Effect.DEGRADED


def test_every_row_says_what_it_means_where_from_and_a_fatal_one_what_it_requires() -> None:
    for row in CATALOGUE.values():
        assert row.mnemonic
        assert row.meaning
        assert row.source in {"catalog", "field"}
    for row in CATALOGUE.values():
        assert row.effect is not Effect.UNHEALTHY or not needs_no_action(row.action)
