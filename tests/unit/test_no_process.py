"""The promise of this folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from support.cases import cases


@cases("start", lambda: subprocess.run(["true"], check=True), lambda: os.system("true"), ids=["subprocess", "shell"])
def test_a_test_that_starts_a_process_is_told_where_it_belongs(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="move this test to tests/programs"):
        start()
