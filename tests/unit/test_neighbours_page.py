"""docs/neighbours.md names everything that the operator reads of others, and every reason that it makes of that."""

from __future__ import annotations

from nodedevices_api.conditions import MAINTENANCE_SCHEDULED, PROBLEM_REPORTED, REASONS
from nodedevices_operator.records.neighbours import SIGNS
from support.repository import ROOT

PAGE = (ROOT / "docs" / "neighbours.md").read_text()


def test_it_names_everything_that_is_read_with_every_reason() -> None:
    assert not [each.key for each in SIGNS if f"`{each.key}" not in PAGE]
    reasons = [it for kind in (PROBLEM_REPORTED, MAINTENANCE_SCHEDULED) for it in REASONS[kind]["True"]]
    assert not [each for each in reasons if f"`{each}`" not in PAGE]
