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
    if not client:
        versions, problem = _agents(session)
        found["agents"] = [{"version": running, "nodes": count} for running, count in Counter(versions).most_common()]
        if problem:
            found["problem"] = problem
        found["kubernetes"] = text(session.api.get("/version").get("gitVersion"))
    for line in _lines(found) if output == "text" else [document(output, "Version", **found)]:
        session.out(line)


def _agents(session: Session) -> tuple[Sequence[str], str]:
    """The version of each node's agent; or none, and why they cannot be read, which hides neither of the others."""
    try:
        return session.api.read_all(objects.NODE_DEVICES, _version_of)[0], ""
    except ApiError as error:
        if error.no_such_kind:
            return (), "NodeDevices is not installed"
        if error.status == 403:
            return (), "you may not read them"
        raise


def _version_of(item: Raw) -> str:
    return text(mapping(facts.status_of(item).get("agent")).get("version")) or "none"


def _lines(found: dict[str, object]) -> list[str]:
    lines = [f"Plugin:      {found['client']}"]
    if "agents" in found:
        agents = found["agents"] if isinstance(found["agents"], list) else []
        shown = [f"{agent['version']} ({agent['nodes']} node{'' if agent['nodes'] == 1 else 's'})" for agent in agents]
        lines += [
            f"Agents:      {found.get('problem') or ', '.join(shown) or '<none>'}",
            f"Kubernetes:  {found['kubernetes']}",
        ]
    return [printable(line) for line in lines]
