"""A second kube-scheduler on our rig, and the extender that it calls, as the component extender-scheduler has them: its
configuration, its account, its roles. Both run as processes beside the cluster's own control plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import installing
from support.access import kubeconfig
from support.cluster import SYSTEM
from support.operatorprocess import ExtenderProcess
from support.rig_cluster import RigCluster

SCHEDULER = "nodedevices-scheduler"
COMPONENTS = installing.ROOT / "manifests" / "components"
TOKEN_SECONDS = 12 * 3600


@contextmanager
def extended(rig: RigCluster, folder: Path) -> Iterator[ExtenderProcess]:
    """The second scheduler runs, and the extender that it calls."""
    component = COMPONENTS / "extender-scheduler"
    rig.kubectl.apply(*(each for each in yaml.safe_load_all((component / "rbac.yaml").read_text()) if each))
    token = rig.kubectl.token(SCHEDULER, SYSTEM, seconds=TOKEN_SECONDS)
    account = kubeconfig(rig.rig.kubeconfig, folder / "kubeconfig", token)
    with ExtenderProcess(folder, account) as extender:
        config: dict[str, Any] = yaml.safe_load((component / "scheduler-config.yaml").read_text())
        config["clientConnection"] = {"kubeconfig": str(account)}
        config["extenders"][0]["urlPrefix"] = f"http://{extender.address}/scheduler"
        file = folder / "scheduler-config.yaml"
        file.write_text(yaml.safe_dump(config))
        with rig.rig.second_scheduler(file, f"--leader-elect-resource-namespace={SYSTEM}"):
            yield extender
