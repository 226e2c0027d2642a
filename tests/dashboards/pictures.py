"""`PYTHONPATH=tests python -m dashboards.pictures`: draw the pictures of docs/dashboards.md (`make pictures`).

Of the scene that the test of the dashboards plays, at a slower pace: three minutes on a real API server and a real
Prometheus. Not part of `make gen`: each time has other numbers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from dashboards import svg
from dashboards.answers import ALL, Asker
from dashboards.files import BOARDS
from support import dashboard_scene
from support.apiserver import ApiServer
from support.dashboard_scene import NAMESPACE, TRAINING, WAYS
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import OperatorProcess, service_account
from support.repository import ROOT

FOLDER = ROOT / "docs" / "dashboards"
STEPS, PACE_SECONDS = 24, 6.0
POINTS = 60  # of a line


def main() -> int:
    with tempfile.TemporaryDirectory() as name, ApiServer(Path(name) / "apiserver") as server:
        folder = Path(name)
        kubectl = Kubectl(server.kubeconfig, str(server.kubectl))
        kubectl.run("apply", "--server-side", "-k", str(ROOT / "crds"))
        wait_until("the CRDs are served", lambda: kubectl.run("get", "nodedevices,devicepolicies") == "")
        account = service_account(kubectl, folder)
        with (
            OperatorProcess(folder, account) as operator,
            dashboard_scene.played(kubectl, operator, folder, steps=STEPS, pace=PACE_SECONDS) as (prometheus, began),
        ):
            ended = time.time()
            values = {"cluster": WAYS[0], "node": TRAINING, "namespace": NAMESPACE, "pod": ALL}
            asker = Asker(prometheus, values, began, ended, step=(ended - began) / POINTS)
            FOLDER.mkdir(exist_ok=True)
            for board in BOARDS:
                answers = [*asker.board(board)]
                (FOLDER / f"{board.name}.svg").write_text(svg.drawn(board, answers, (began, ended)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
