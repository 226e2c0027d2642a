"""Checks any DRA driver at its sockets, in the place of a kubelet: `python -m dra_sanity --plugins-registry DIR`.

    PYTHONPATH=tests python -m dra_sanity --plugins-registry /var/lib/kubelet/plugins_registry --pool n1 \\
        --kubeconfig FILE --cdi /var/run/cdi

The driver must have the API server of the kubeconfig, where claims are created in a namespace and allocated as a
scheduler does, and no kubelet and no pod beside it: the driver is told that it is registered. Claims are removed
again. Exit 0: everything holds; 1: something does not; 2: nothing could be checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from dra_sanity.checks import Bench, Outcome, run
from dra_sanity.claims import ClusterClaims
from dra_sanity.driver import Driver, NoDriverError
from support.kubectl import Kubectl, KubectlError, NotReached


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dra_sanity", description="Checks a DRA driver in the place of a kubelet.")
    parser.add_argument("--plugins-registry", type=Path, required=True, help="the folder of registration sockets")
    parser.add_argument("--driver", default="", help="the driver's name, where there are several")
    parser.add_argument(
        "--kubeconfig", type=Path, required=True, help="of the API server where the driver reads claims"
    )
    parser.add_argument("--namespace", default="default", help="where claims are created")
    parser.add_argument("--pool", required=True, help="the pool of the driver's devices: as a rule the node")
    parser.add_argument("--cdi", type=Path, action="append", help="a folder of CDI specifications; may be repeated")
    parser.add_argument("--quick", action="store_true", help="without what a driver may wait for most of a minute")
    chosen = parser.parse_args(argv)
    cdi = chosen.cdi or [Path("/var/run/cdi"), Path("/etc/cdi")]
    claims = ClusterClaims(Kubectl(chosen.kubeconfig), chosen.namespace)
    bench = Bench(Driver(chosen.plugins_registry, chosen.driver), claims, chosen.pool, cdi)
    try:
        outcomes = checked(bench, waiting=not chosen.quick)
    except (NoDriverError, grpc.RpcError, KubectlError, NotReached) as error:
        print(f"dra_sanity: {error}", file=sys.stderr)
        return 2
    print(table(outcomes))
    return 1 if any(each.state == "FAILED" for each in outcomes) else 0


def checked(bench: Bench, *, waiting: bool = True) -> list[Outcome]:
    """Register the driver, and check it with what it publishes."""
    info = bench.driver.info()
    bench.driver.notify(registered=True)
    bench.devices = bench.claims.devices(info.name, bench.pool)
    return run(bench, waiting=waiting)


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"{each.state:8}{each.what}" + (f": {each.seen}" if each.seen else "") for each in outcomes]
    counts = {state: sum(each.state == state for each in outcomes) for state in ("ok", "skipped", "FAILED")}
    return "\n".join([*lines, ", ".join(f"{number} {state}" for state, number in counts.items())])


if __name__ == "__main__":
    sys.exit(main())
