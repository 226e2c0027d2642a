"""The dashboards that there are, and where their JSON is."""

from __future__ import annotations

from pathlib import Path

from dashboards.boards import fleet, itself, job_owner, node
from dashboards.description import Board

COMPONENT = Path("manifests/components/prometheus")  # below the repository's root, where `make gen` runs
BOARDS = (fleet.BOARD, node.BOARD, job_owner.BOARD, itself.BOARD)


def path(board: Board) -> Path:
    """Return its file, whose name is its key in the ConfigMap, too: the sidecar puts all of them into one folder."""
    return COMPONENT / f"{board.uid}.json"
