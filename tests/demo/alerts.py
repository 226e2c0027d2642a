"""`make alerts`: a real Prometheus beside a cluster of `make cluster-up`, and a line whenever an alert changes.

    make alerts                  # on the cluster of KUBECONFIG; our rules as they are, but for durations of 5 s
    make alerts HOLD=1m          # with another duration

It applies the Services of the component prometheus and deletes them at its end (Ctrl-C). It runs on the same
machine as the cluster, because it scrapes the pods by their addresses.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from support import prometheus_server
from support.kubectl import Kubectl, KubectlError
from support.prometheus import COMPONENT, program
from support.prometheus_server import Server

POLL_SECONDS = 1.0


def main() -> int:
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not kubeconfig:
        print("KUBECONFIG is not set: take the line that `make cluster-up` printed", file=sys.stderr)
        return 1
    if program("prometheus") is None:
        print("no prometheus: `make cluster-tools` gets one", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kubectl, services = Kubectl(Path(kubeconfig)), str(COMPONENT / "services.yaml")
    try:
        kubectl.run("apply", "-f", services)
        with (
            suppress(KeyboardInterrupt),
            tempfile.TemporaryDirectory() as folder,
            prometheus_server.running(
                prometheus_server.in_cluster(kubectl), Path(folder), hold=os.environ.get("HOLD") or "5s"
            ) as server,
        ):
            print(f"Prometheus: {server.url}/alerts (Ctrl-C ends it)", flush=True)
            follow(server)
    except KubectlError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        with suppress(KubectlError):
            kubectl.run("delete", "-f", services, "--ignore-not-found")
    return 0


def follow(server: Server) -> None:
    """Prints what changed, until interrupted."""
    before: dict[str, str] = {}
    while True:
        with suppress(ConnectionError, KubectlError):
            server.discover()
            found = [each for alerts in server.alerts().values() for each in alerts]
            now = {named(each["labels"]): each["state"] for each in found}
            for name in sorted(now.keys() | before.keys()):
                if now.get(name) != before.get(name):
                    print(f"{datetime.now(UTC):%H:%M:%S}  {now.get(name, 'closed'):8} {name}", flush=True)
            before = now
        time.sleep(POLL_SECONDS)


def named(labels: Mapping[str, str]) -> str:
    return " ".join(labels[key] for key in ("alertname", "node", "uuid", "pod") if key in labels)


if __name__ == "__main__":
    sys.exit(main())
