"""What the watches' thread logs."""

from __future__ import annotations

import logging

from nodedevices_operator.kube.source import SPARSE_SECONDS, Sparse


def test_a_watch_that_is_refused_at_every_try_says_so_once_a_minute() -> None:
    now = [0.0]
    sparse = Sparse(lambda: now[0])
    said = 0
    record = logging.LogRecord("kopf", logging.ERROR, "", 0, "Request attempt failed; will retry", (), None)
    for _ in range(120):
        said += sparse.filter(record)
        now[0] += 5.0
    assert said == 600 / SPARSE_SECONDS
