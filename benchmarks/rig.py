"""The test cluster for what is measured on real kubelets: two nodes on this machine, our images from our manifests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.kubectl import KubectlError, NotReached
from support.rig_cluster import RigCluster

from benchmarks.table import NotHere


@contextmanager
def on_the_rig() -> Iterator[RigCluster]:
    """Raises NotHere where it cannot be had, or does not do what is measured."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NotHere("the test cluster needs Linux and root")
    from support import cluster_provider

    try:
        with cluster_provider.of_rig("bench") as provider, RigCluster.opened(provider) as rig:
            yield rig
    except (KubectlError, NotReached) as error:
        raise NotHere(str(error)) from error
