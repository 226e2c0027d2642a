"""The answers to /healthz and /readyz.

/healthz fails only where a restart may help: a background part that has kept failing for ten minutes, or a call of the
kubelet that is not answered. The event loop says so, which also makes the lists for the kubelet: a loop that hangs says
nothing. /readyz names each problem that keeps the node from being served as it should be, one a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodedevices_common.http import Response

from nodedevices_plugin.model import HoldersState, Registration, RegistrationState
from nodedevices_plugin.pipeline.world import World
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status.step_log import problems

UNANSWERED_SECONDS = 60.0  # an answer takes a second at most


@dataclass(frozen=True)
class Readiness:
    """`world`: the latest. `probe_error`: why the probe's process ended. `publisher_problem`: why the status is not up
    to date; "" where it is, or where none is published. `answering_seconds`: for how long a call of the kubelet has
    waited for its answer."""

    parts: Supervisor
    world: Callable[[], World]
    registrations: Callable[[], Sequence[Registration]]
    probe_error: Callable[[], str | None]
    publisher_problem: Callable[[], str]
    answering_seconds: Callable[[], float] = lambda: 0.0

    def healthz(self) -> Response:
        """Answer 200 while no part keeps failing; any answer shows that the event loop runs."""
        unhealthy = list(self.parts.unhealthy())
        if (seconds := self.answering_seconds()) > UNANSWERED_SECONDS:
            unhealthy.append(f"a call of the kubelet has not been answered for {seconds:.0f} s")
        return Response(503, f"{'; '.join(unhealthy)}\n".encode()) if unhealthy else Response(200, b"ok\n")

    def readyz(self) -> Response:
        wrong = [*self.parts.problems(), *self._not_serving(), *filter(None, [self.publisher_problem()])]
        if wrong:
            return Response(503, "".join(f"{problem}\n" for problem in wrong).encode())
        reported = problems(self.world().known.inventory)
        return Response(200, f"ok; the probe reports {'; '.join(reported)}\n".encode() if reported else b"ok\n")

    def _not_serving(self) -> list[str]:
        """Return why the kubelet does not have all that this node offers."""
        world = self.world()
        if world.plan is None:
            if world.known.inventory.line_monotonic is None:
                return [": ".join(["the probe has not reported yet", *filter(None, [self.probe_error()])])]
            return [world.config.message]
        if world.observed is not None and world.holdings.state is HoldersState.UNAVAILABLE:
            return [world.holdings.message]
        registrations = self.registrations()
        known = {registration.resource for registration in registrations}
        planned = world.plan.resources if world.observed is None else ()
        return [
            *(f"{name}: {why}" for name, why in world.lost.items()),
            *(
                f"{resource.name}: not registered yet"
                for resource in planned
                if resource.ids and resource.name not in known
            ),
            *(
                f"{registration.resource}: {registration.state.value} {registration.message}".rstrip()
                for registration in registrations
                if registration.state is not RegistrationState.REGISTERED
            ),
        ]
