"""`kubectl nodedevices top`: how busy devices are, as their agents measure it.

Each agent is asked through the API server's proxy to its pod. A few are asked at a time, each with a time limit, and
all together with another one. An agent that does not answer costs its own node's readings.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import click
from nodedevices_common.errors import NodeDevicesError, OperationError
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_common.table import Row

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.listing import Listing, print_rows
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts, top as view

AT_ONCE = 8
SECONDS = 3.0  # for one agent
ALL_SECONDS = 60.0
_PORT = "http"  # name of the port of the metrics


@click.command(short_help="Show how busy devices are: utilisation, memory, power, temperature.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@click.option("--idle", is_flag=True, help="Only devices that pods hold and that compute nothing.")
@options.system_namespace("the agents")
@options.with_session
@options.one_listing
def top(session: Session, listing: Listing, *, names: tuple[str, ...], idle: bool, system_namespace: str) -> None:
    """Show how busy devices are, as their agents measure it (--telemetry): utilisation, memory, power, temperature. The
    agents are asked through the API server's proxy to their pods, which needs its own permission.

    \b
    kubectl nodedevices top --sort-by util
    kubectl nodedevices top --idle             # held, and not used
    """
    if names and listing.selector:
        raise click.UsageError("give names, or a selector (-l), not both")
    items = [session.node(name) for name in dict.fromkeys(names)]
    if not names:
        items, _ = session.api.list_all(objects.NODE_DEVICES, selector=listing.selector)
    answers = _read(session, system_namespace, frozenset(map(facts.name_of, items)))
    rows: list[Row] = []
    for item in items:
        metrics, problem = answers.get(facts.name_of(item), ("", view.NO_AGENT))
        rows += view.rows(item, view.readings(metrics), problem, idle=idle)
    if not rows:
        session.say("No devices found that are held and idle." if idle else "No devices found.")
    print_rows(session, listing, view.KIND, rows)
    session.flush()
    if silent := [row for row in rows if row.fields["problem"]]:
        why = silent[0].fields
        raise OperationError(
            f"{len(silent)} of {len(items)} nodes gave no readings: {why['node']}: {why['problem']}; "
            "docs/kubectl.md says what top needs"
        )


def _read(session: Session, namespace: str, names: frozenset[str]) -> dict[str, tuple[str, str]]:
    """Return the metrics of these nodes' agents, or why there are none, by node. A node without a pod of ours is not in
    it."""
    paths: dict[str, str] = {}
    for pod in session.api.list_all(objects.pods(namespace), selector=facts.AGENTS)[0]:
        node, port = text(mapping(pod.get("spec")).get("nodeName")), _port(pod)
        if node in names and port is not None:
            paths[node] = objects.through_pod(namespace, facts.name_of(pod), port, "metrics")
    found: dict[str, tuple[str, str]] = {}
    waiting, end = iter(paths.items()), time.monotonic() + ALL_SECONDS

    def ask(_: int) -> None:
        with closing(session.beside(session.context_name, SECONDS)) as own:
            for node, path in waiting:  # each goes to one thread
                if time.monotonic() >= end:
                    found[node] = "", f"not asked: {ALL_SECONDS:g} s are over; name fewer nodes"
                    continue
                try:
                    found[node] = own.api.text(path), ""
                except NodeDevicesError as error:
                    found[node] = "", str(error)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(ask, range(AT_ONCE)))  # raises what one of them raised
    return found


def _port(pod: Raw) -> int | None:
    containers = mappings(mapping(pod.get("spec")).get("containers"))
    ports = (port for container in containers for port in mappings(container.get("ports")))
    numbers = (number(port.get("containerPort")) for port in ports if port.get("name") == _PORT)
    return next(filter(None, numbers), None)
