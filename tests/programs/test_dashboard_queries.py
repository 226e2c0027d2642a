"""The dashboards' queries, read by Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from dashboards import promql
from dashboards.files import BOARDS
from support.prometheus import program, promtool


@pytest.mark.skipif(program("promtool") is None, reason="no promtool: `make cluster-tools` gets one")
def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    queries = [query.replace("$__rate_interval", "5m") for board in BOARDS for query in promql.queries(board)]
    recorded = [{"record": f"dashboards:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": recorded}]}))
    promtool("check", "rules", "--no-lint-fatal", str(file))
