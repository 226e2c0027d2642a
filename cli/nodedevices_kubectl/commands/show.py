"""The commands that show: lists of nodes, devices, pods, and of what pods hold and do not use; one node, or one device;
and versions.

Who may read a namespace only has its pods' rows from the pods' own status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import click
from nodedevices_common import __version__
from nodedevices_common.raw import mapping, text
from nodedevices_common.text import printable
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.listing import Listing, Source, document, print_rows, show
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import describe as describing, facts, find, lists as view


@click.command(short_help="List nodes: health of agent and devices, and held devices.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@options.with_session
@options.listing
@options.several
def nodes(session: Session, listing: Listing, names: tuple[str, ...]) -> None:
    """List nodes: health of the agent and of its devices, how many devices are held, and what is wrong.

    \b
    kubectl nodedevices                      # all
    kubectl nodedevices nodes -o wide        # also what is free or withheld, and versions
    kubectl nodedevices nodes -l pool=x -w   # some, and whatever changes
    kubectl nodedevices --all-contexts       # of every cluster, in one table
    """
    empty = (
        "No nodes with devices found. Is the agent running? kubectl -n nodedevices-system get pods"
        if not (names or listing.selector)
        else ""
    )
    show(session, listing, Source(view.NODES, lambda item: [view.node_row(item)], names, empty))


@click.command(short_help="List devices: model, health, and holders.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=options.complete_nodes)
@click.option("--unhealthy", is_flag=True, help="Only devices that are not Healthy: Unhealthy, Degraded, Unknown.")
@click.option("--model", metavar="TEXT", default="", help="Only devices with this in their product name.")
@options.with_session
@options.listing
@options.several
@options.namespace()
def devices(
    session: Session,
    listing: Listing,
    *,
    names: tuple[str, ...],
    namespace: str,
    unhealthy: bool,
    model: str,
) -> None:
    """List devices: model, health and since when, what would help, and which pods hold them. Partitions (MIG
    devices) follow their device.

    \b
    kubectl nodedevices devices --unhealthy     # what needs a person
    kubectl nodedevices devices n1 -o wide      # one node: PCI addresses, NUMA nodes, ids
    kubectl nodedevices devices -n ml           # held by pods of this namespace
    """
    words = [
        word
        for given, word in (
            (unhealthy, "not healthy"),
            (model, f"of a model with {model!r} in its name"),
            (namespace, f"held by pods of namespace {namespace}"),
        )
        if given
    ]
    empty = f"No devices found that are {' and '.join(words)}." if words else ""
    rows = partial(view.device_rows, namespace=namespace, unhealthy=unhealthy, model=model)
    show(session, listing, Source(view.DEVICES, rows, names, empty))


@click.command(short_help="List devices that pods hold but do not use, and for how long.")
@click.option("--unknown", is_flag=True, help="Also devices of which it is not known: shares, partitions, no readings.")
@options.with_session
@options.listing
@options.several
@options.namespace(own=True)
def idle(session: Session, listing: Listing, namespace: str, unknown: bool) -> None:
    """List devices that pods hold but do not use, as their agents report where a policy has idle.afterSeconds:
    NeverUsed, Idle or MemoryOnly, and for how long. Pods of the context's namespace; -A for all.

    \b
    kubectl nodedevices idle -A --sort-by for
    kubectl nodedevices idle -n ml -o wide
    """
    place = f"in {namespace} namespace" if namespace else "in any namespace"
    empty = f"No devices found {place} that are held and not used."
    show(
        session, listing, Source(view.IDLE, partial(view.idle_rows, namespace=namespace, unknown=unknown), empty=empty)
    )


@click.command(short_help="List pods that hold devices, with health of the devices.")
@click.argument("names", metavar="[POD]...", nargs=-1)
@options.with_session
@options.listing
@options.several
@options.namespace(own=True)
def pods(session: Session, listing: Listing, names: tuple[str, ...], namespace: str) -> None:
    """List pods that hold devices: which devices, on which node, since when, and their health. Pods of the context's
    namespace, as with kubectl get pods; -A for all.

    \b
    kubectl nodedevices pods -A --sort-by health
    kubectl nodedevices pods train-0 -n ml -o wide     # by which resource, how many shares, which ids
    """
    place = f"in {namespace} namespace" if namespace else "in any namespace"
    who = f"Pod {', '.join(names)} holds no devices" if names else "No pods that hold devices found"
    empty = f"{who} {place}."
    try:
        show(session, listing, Source(view.PODS, partial(view.pod_rows, namespace=namespace, names=names), empty=empty))
    except ApiError as error:
        if error.status != 403 or not namespace or listing.watch or listing.selector or listing.several:
            raise
        _show_alone(session, listing, namespace, names, empty)


def _show_alone(session: Session, listing: Listing, namespace: str, names: tuple[str, ...], empty: str) -> None:
    items, _ = session.api.list_all(objects.pods(namespace))
    rows = [row for pod in items for row in view.rows_of_pod(pod) if not names or row.fields["pod"] in names]
    session.say(
        "You may not list NodeDevices, which are cluster-scoped (role nodedevices-view): the pods' own status is shown "
        "instead."
    )
    if rows or listing.output in {"json", "yaml"}:
        print_rows(session, listing, view.PODS, rows)
    else:
        session.say(empty)
    session.flush()


@click.command(short_help="Show a node, or one of its devices, on one screen.")
@click.argument("what", metavar="NODE[/DEVICE]", shell_complete=options.complete_devices)
@options.with_session
def describe(session: Session, what: str) -> None:
    """Show a node on one screen, or one of its devices: by name, by index, by id, or by the beginning of its id.

    \b
    kubectl nodedevices describe n1
    kubectl nodedevices describe n1/gpu-3
    kubectl nodedevices describe n1/3
    """
    node, device = find.split(what)
    item = session.node(node)
    now = session.now()
    if device:
        sections = describing.device(item, find.device(item, device), now)
    else:
        about = f"involvedObject.kind=NodeDevices,involvedObject.name={node}"
        sections = describing.node(item, now, session.listed(objects.EVENTS, fields=about))
    for line in describing.lines(sections, now, colours=session.colours):
        session.out(line)


@click.command(short_help="Show the versions of this plugin, of the agents, and of Kubernetes.")
@click.option("--client", is_flag=True, help="Only of this plugin; no API server is asked.")
@click.option("-o", "--output", type=click.Choice(("text", "json", "yaml")), default="text", help="Form of the output.")
@options.with_session
def version(session: Session, *, client: bool, output: str) -> None:
    """Show the versions of this plugin, of the agents with the number of their nodes, and of Kubernetes."""
    found: dict[str, object] = {"client": __version__}
    lines = [f"Plugin:      {__version__}"]
    if not client:
        agents, problem = _agents(session)
        kubernetes = text(session.api.get("/version").get("gitVersion"))
        found["agents"] = [{"version": running, "nodes": count} for running, count in agents]
        found |= {**({"problem": problem} if problem else {}), "kubernetes": kubernetes}
        shown = [f"{running} ({count} node{'' if count == 1 else 's'})" for running, count in agents]
        lines += [f"Agents:      {problem or ', '.join(shown) or '<none>'}", f"Kubernetes:  {kubernetes}"]
    for line in map(printable, lines) if output == "text" else [document(output, "Version", **found)]:
        session.out(line)


def _agents(session: Session) -> tuple[Sequence[tuple[str, int]], str]:
    """Return the agents' versions, each with the number of its nodes; or none, and why they cannot be read, which hides
    neither of the others."""
    try:
        agents, _ = session.api.read_all(objects.NODE_DEVICES, lambda item: mapping(facts.status_of(item).get("agent")))
        return Counter(text(agent.get("version")) or "none" for agent in agents).most_common(), ""
    except ApiError as error:
        if error.no_such_kind:
            return (), "NodeDevices is not installed"
        if error.status == 403:
            return (), "you may not read them"
        raise
