"""`kubectl nodedevices version`: of this program, of the agents, of Kubernetes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click
from nodedevices_common import __version__
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.text import printable
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects, options
from nodedevices_kubectl.listing import document
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts


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
        found |= {"agents": [{"version": running, "nodes": count} for running, count in agents]}
        found |= {**({"problem": problem} if problem else {}), "kubernetes": kubernetes}
        shown = [f"{running} ({count} node{'' if count == 1 else 's'})" for running, count in agents]
        lines += [f"Agents:      {problem or ', '.join(shown) or '<none>'}", f"Kubernetes:  {kubernetes}"]
    for line in map(printable, lines) if output == "text" else [document(output, "Version", **found)]:
        session.out(line)


def _agents(session: Session) -> tuple[Sequence[tuple[str, int]], str]:
    """Return the agents' versions, each with the number of its nodes; or none, and why they cannot be read, which hides
    neither of the others."""
    try:
        return Counter(session.api.read_all(objects.NODE_DEVICES, _version_of)[0]).most_common(), ""
    except ApiError as error:
        if error.no_such_kind:
            return (), "NodeDevices is not installed"
        if error.status == 403:
            return (), "you may not read them"
        raise


def _version_of(item: Raw) -> str:
    return text(mapping(facts.status_of(item).get("agent")).get("version")) or "none"
