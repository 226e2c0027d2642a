"""Tests of the real cluster that wait for minutes: `make e2e-long`. `make test` leaves them out (pyproject.toml).

One cluster of the rig is for all of them, as the end-to-end tests have it.
"""

from __future__ import annotations

from support.fixtures import cluster, installed, provider, rig  # noqa: F401 - pytest finds them here
