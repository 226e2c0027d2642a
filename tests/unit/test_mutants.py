"""`make mutants` finds what it is to change."""

from __future__ import annotations

from mutants.__main__ import PURE, equivalent, files_of, named
from mutants.sources import mutants


def test_every_module_is_there_and_so_is_each_change_that_nobody_could_see() -> None:
    changes = {named(change) for module in PURE for file in files_of(module) for change in mutants(file)}
    assert equivalent() <= changes
