"""Options that several commands have, named as kubectl names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import wraps
from typing import Any, TypeVar

import click
from nodedevices_common.errors import NodeDevicesError

from nodedevices_kubectl import objects
from nodedevices_kubectl.listing import OUTPUTS, Listing
from nodedevices_kubectl.session import COLOURS, Machine, Session
from nodedevices_kubectl.views import facts

COMPLETION_SECONDS = 2.0  # nobody waits longer for a proposal
F = TypeVar("F", bound=Callable[..., Any])


def with_session(function: Callable[..., None]) -> Callable[..., None]:
    """--kubeconfig, --context and --color; the function gets a Session in their place."""

    @click.option("--kubeconfig", metavar="FILE", default="", help="kubeconfig; default: $KUBECONFIG, ~/.kube/config.")
    @click.option("--context", metavar="NAME", default="", help="Context of the kubeconfig; default: the current one.")
    @click.option(
        "--color", type=click.Choice(COLOURS), default="auto", help="auto: on a terminal, and without NO_COLOR."
    )
    @wraps(function)
    def call(*, kubeconfig: str, context: str, color: str, **given: Any) -> None:
        machine = click.get_current_context().obj
        with closing(Session(machine, kubeconfig=kubeconfig, context=context, color=color)) as session:
            function(session, **given)

    return call


def one_listing(function: Callable[..., None]) -> Callable[..., None]:
    """What all commands that list have; the function gets a Listing. Goes below `with_session`."""

    @click.option("-o", "--output", type=click.Choice(OUTPUTS), default="table", help="Form of the output.")
    @click.option("--no-headers", is_flag=True, help="Leave out the line with the headers.")
    @click.option("--sort-by", metavar="COLUMN", default="", help="A column of the table, such as reason or age.")
    @click.option(
        "-l", "--selector", metavar="LABELS", default="", help="Only nodes with these labels: pool=x,zone!=a."
    )
    @wraps(function)
    def call(
        session: Session,
        *,
        output: str,
        no_headers: bool,
        sort_by: str,
        selector: str,
        watch: bool = False,
        contexts: str = "",
        all_contexts: bool = False,
        **given: Any,
    ) -> None:
        named = tuple(filter(None, map(str.strip, contexts.split(","))))
        if named and all_contexts:
            raise click.UsageError("give --contexts or --all-contexts, not both")
        function(session, Listing(output, not no_headers, sort_by, selector, watch, named, all_contexts), **given)

    return call


def listing(function: Callable[..., None]) -> Callable[..., None]:
    """The same, and -w."""
    return click.option("-w", "--watch", is_flag=True, help="Go on with the rows that change.")(one_listing(function))


def several(function: Callable[..., None]) -> Callable[..., None]:
    """--contexts and --all-contexts, which go into the Listing. Goes below `listing`."""
    every = click.option("--all-contexts", is_flag=True, help="The cluster of every context.")
    named = click.option(
        "--contexts", metavar="A,B", default="", help="Several clusters in one table, by their contexts."
    )
    return named(every(function))


def system_namespace(of: str) -> Callable[[F], F]:
    """--system-namespace. `of`: whose it is, for people."""
    return click.option(
        "--system-namespace", metavar="NS", default="nodedevices-system", show_default=True, help=f"Of {of}."
    )


def dry_run(function: F) -> F:
    """--dry-run, which the API server carries out."""
    return click.option("--dry-run", is_flag=True, help="Let the API server check it, and change nothing.")(function)


def namespace(*, own: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """-n and -A; the function gets the namespace, empty: of all. `own`: the context's where neither is given. Goes
    below `several`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option("-n", "--namespace", metavar="NS", default="", help="Only what pods of this namespace hold.")
        @click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces.")
        @wraps(function)
        def call(session: Session, listing: Listing, *, namespace: str, all_namespaces: bool, **given: Any) -> None:
            if namespace and all_namespaces:
                raise click.UsageError("give -n or -A, not both")
            if own and not (namespace or all_namespaces):
                if listing.several:
                    raise click.UsageError("of several clusters: give -n NAMESPACE or -A")
                namespace = session.context.namespace
            function(session, listing, namespace=namespace, **given)

        return call

    return decorate


def _proposals(context: click.Context, incomplete: str, read: Callable[[Session], Iterable[str]]) -> list[str]:
    """The names that begin so. Without an answer there is nothing to propose, and nobody wants to read why in a
    prompt."""
    given, machine = context.params, context.find_object(Machine) or Machine()
    kubeconfig, name = given.get("kubeconfig") or "", given.get("context") or ""
    try:
        with closing(Session(machine, kubeconfig=kubeconfig, context=name, seconds=COMPLETION_SECONDS)) as session:
            return [name for name in read(session) if name.startswith(incomplete)]
    except NodeDevicesError:
        return []


def complete_nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _proposals(context, incomplete, lambda session: session.api.names(objects.NODE_DEVICES))


def complete_policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _proposals(context, incomplete, lambda session: session.api.names(objects.POLICIES))


def complete_confirmable(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """What `confirm` is about, and with what outcome: click asks only once for both."""
    from nodedevices_kubectl.views import edits  # noqa: PLC0415

    if incomplete.startswith(edits.POLICY):
        names = complete_policies(context, parameter, incomplete.removeprefix(edits.POLICY))
        return [f"{edits.POLICY}{name}" for name in names]
    words = [word for word in (edits.ACTIONS, edits.POLICY, *edits.OUTCOMES) if word.startswith(incomplete)]
    return complete_devices(context, parameter, incomplete) + words


def complete_devices(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """NODE/ first, then NODE/DEVICE."""
    node, slash, _ = incomplete.partition("/")
    if not slash:
        return [f"{name}/" for name in complete_nodes(context, parameter, node)]
    return _proposals(
        context, incomplete, lambda session: [f"{node}/{unit.name}" for unit in facts.units(session.node(node))]
    )
