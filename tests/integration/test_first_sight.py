"""What `make demo` shows on an API server alone, while the images are built."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo import first_sight
from demo.stage import Stage
from support.apiserver import ApiServer


@pytest.mark.usefixtures("kubectl")
def test_a_fault_is_an_object_and_rows_of_the_plugin_before_there_is_a_node(
    apiserver: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_sight.without_nodes(Stage(), tmp_path, apiserver)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("here NVIDIA-H100-80GB-HBM3 8 8 0 ") for line in shown)
    assert sum("here gpu-" in line and "Healthy <none>" in line for line in shown) == 7
    assert any("here gpu-3 NVIDIA H100 80GB HBM3 Unhealthy Xid79" in line for line in shown)
