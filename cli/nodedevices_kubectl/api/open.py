"""From what a person gave (a context, a file) to the API server's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nodedevices_common import __version__
from nodedevices_common.text import nearest
from nodedevices_kube import credentials, kubeconfig
from nodedevices_kube.connection import Connection
from nodedevices_kube.errors import KubeconfigError

from nodedevices_kubectl.api.login import log_in
from nodedevices_kubectl.api.objects import Api

USER_AGENT = f"kubectl-nodedevices/{__version__}"


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster is meant, as it was given."""

    kubeconfig: str = ""
    context: str = ""


def find_context(target: Target, environment: Mapping[str, str]) -> kubeconfig.Context:
    found = kubeconfig.find(target.kubeconfig or None, environment)
    if found is None and not target.context:
        return kubeconfig.of_service_account(environment)
    if found is None:
        raise KubeconfigError(f"--context {target.context}: there is no kubeconfig; give --kubeconfig")
    return found.context(target.context)


def find_contexts(explicit: str, named: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The contexts of these names; none named: all that there are, one for each API server. And words about it."""
    found = kubeconfig.find(explicit or None, environment)
    if found is None:
        raise KubeconfigError("several contexts: there is no kubeconfig; give --kubeconfig")
    if named:
        for name in named:
            if name not in found.contexts:
                raise KubeconfigError(f"--contexts {name}: there is no such context{nearest(name, found.contexts)}")
        return list(dict.fromkeys(named)), []
    chosen: dict[str, str] = {}  # server -> context
    words = []
    for name in sorted(found.contexts, key=lambda name: name != found.current):  # the current one counts
        server = found.server(name) or f"context {name}"
        if server in chosen:
            words.append(f"{name} is the same cluster as {chosen[server]} ({server}).")
        else:
            chosen[server] = name
    if not chosen:
        raise KubeconfigError("--all-contexts: the kubeconfig has no context")
    return sorted(chosen.values()), words


def connect(context: kubeconfig.Context, environment: Mapping[str, str], seconds: float = 0.0) -> Api:
    """Nothing is sent yet; an exec plugin is run. `seconds`: the longest to wait for an answer, and nobody is
    asked to log in; 0: as usual."""
    known = credentials.for_context(context, partial(log_in, environment=environment, ask=not seconds))
    limits = {"connect_seconds": seconds, "answer_seconds": seconds} if seconds else {}
    connection = Connection(context.cluster, known, environment, user_agent=USER_AGENT, **limits)
    return Api(connection, context.name)
