"""kubectl, as the demo and the end-to-end tests use it: run it, read its JSON, watch with arrival times, wait.

Everything that these programs know about a cluster comes through here, so that they see what a user sees; single
objects of our own clusters are read without a process (direct). A command that fails raises `KubectlError` with
the command and what it printed; a wait that is not over in time raises `NotReached` with the last thing seen. Nothing
waits for ever: each command has a time limit, each wait a deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from support.direct import DirectError, reach
from support.patience import CLUSTER_PATIENCE_SECONDS

# Between two questions: each may be a kubectl, a tenth of a second of CPU.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 1.0

T = TypeVar("T")


class KubectlError(Exception):
    """A command that failed: what was run and what it said."""

    def __init__(self, argv: Sequence[str], code: int, said: str) -> None:
        super().__init__(f"{' '.join(argv)}: exit {code}: {said.strip()[-2000:]}")
        self.code = code
        self.said = said


class NotReached(Exception):  # noqa: N818 - reads as what happened
    """A state that did not come in time."""


def wait_until(
    what: str, look: Callable[[], T | None], *, seconds: float = CLUSTER_PATIENCE_SECONDS, every: float | None = None
) -> T:
    """The first truthy thing that `look` returns; it is called ever more rarely, or `every` so many seconds.

    A command or question that fails meanwhile counts as "not yet", and so does a field that an object has not got yet.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    pause = FIRST_PAUSE_SECONDS if every is None else every
    while True:
        try:
            seen = look()
            if seen:
                return seen
            last = seen
        except (KubectlError, ConnectionError, LookupError) as error:
            last = error
        if time.monotonic() >= deadline:
            raise NotReached(f"{what}: not within {seconds:g} s; last seen: {last!r}"[:4000])
        time.sleep(pause)
        if every is None:
            pause = min(pause * 1.25, LONGEST_PAUSE_SECONDS)


@contextmanager
def _said(*argv: str) -> Iterator[None]:
    """What was refused without a process reads as a command's failure."""
    try:
        yield
    except DirectError as error:
        raise KubectlError(argv, 1, str(error)) from error


def _place(namespace: str | None) -> tuple[str, ...]:
    return ("-n", namespace) if namespace else ()


def _part(subresource: str) -> tuple[str, ...]:
    return (f"--subresource={subresource}",) if subresource else ()


@dataclass(frozen=True)
class Kubectl:
    kubeconfig: Path
    binary: str = "kubectl"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def argv(self, *args: str) -> list[str]:
        return [self.binary, *args]

    def run(self, *args: str, stdin: str | None = None, seconds: float = CLUSTER_PATIENCE_SECONDS) -> str:
        """Standard output of one command."""
        argv = self.argv(*args)
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                timeout=seconds,
                env=self.environment(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(argv, 124, f"no answer within {seconds:g} s") from error
        if done.returncode:
            raise KubectlError(argv, done.returncode, done.stderr + done.stdout)
        return done.stdout

    def json(self, *args: str, stdin: str | None = None) -> Any:
        return json.loads(self.run(*args, "-o", "json", stdin=stdin))

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """The object, or None when there is none of that name."""
        if direct := reach(self.kubeconfig, kind):
            with _said("get", kind, name):
                return direct.get(kind, name, namespace)
        text = self.run(
            "get", kind, name, *_place(namespace), "-o", "json", "--ignore-not-found", "--show-managed-fields"
        )
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def object(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        """The object, which is there, with its managed fields."""
        found = self.get(kind, name, namespace)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def items(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """The objects of a namespace, or of all of them."""
        if direct := reach(self.kubeconfig, kind):
            with _said("get", kind):
                return direct.items(kind, namespace, labels=labels, fields=fields)
        place = ("-n", namespace) if namespace else ("--all-namespaces",)
        items: list[dict[str, Any]] = self.json("get", kind, *place, "-l", labels, "--field-selector", fields)["items"]
        return items

    def create(self, thing: Mapping[str, Any], *, dry: bool = False) -> dict[str, Any]:
        """The object that was made; `dry`: that would have been."""
        if direct := reach(self.kubeconfig, thing["kind"]):
            with _said("create", thing["kind"], thing["metadata"]["name"]):
                return direct.create(thing, dry=dry)
        flags = ("--dry-run=server",) if dry else ()
        made: dict[str, Any] = self.json("create", *flags, "-f", "-", stdin=json.dumps(thing))
        return made

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Server-side, as a person would who edits the same object again and again."""
        if all(reach(self.kubeconfig, one["kind"]) for one in objects):
            for one in objects:
                self.apply_as("kubectl", one)
            return
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)

    def apply_as(self, manager: str, thing: Mapping[str, Any], *, subresource: str = "") -> None:
        """One object, as another field manager; `subresource`: only that part of it."""
        if direct := reach(self.kubeconfig, thing["kind"]):
            with _said("apply", thing["kind"], thing["metadata"]["name"]):
                return direct.apply(thing, manager=manager, subresource=subresource)
        flags = ("--server-side", "--force-conflicts", f"--field-manager={manager}", *_part(subresource))
        self.run("apply", *flags, "-f", "-", stdin=json.dumps(thing))
        return None

    def patch(
        self,
        kind: str,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        how: str = "merge",
        manager: str = "kubectl-patch",
        subresource: str = "",
    ) -> None:
        """`how`: merge or strategic."""
        if direct := reach(self.kubeconfig, kind):
            with _said("patch", kind, name):
                return direct.patch(kind, name, namespace, change, how=how, manager=manager, subresource=subresource)
        flags = (f"--type={how}", f"--field-manager={manager}", *_part(subresource), *_place(namespace))
        self.run("patch", kind, name, *flags, "-p", json.dumps(change))
        return None

    def delete(self, kind: str, *names: str, namespace: str | None = None, wait: bool = True) -> None:
        """Nothing is done for a name that is not there; `wait`: until they are gone."""
        if direct := reach(self.kubeconfig, kind):
            with _said("delete", kind, *names):
                uids = {name: direct.delete(kind, name, namespace) for name in names}
            for name, uid in uids.items() if wait else ():
                what = f"{kind} {name} is gone"
                wait_until(what, lambda n=name, u=uid: self._other(kind, n, namespace, u))  # type: ignore[misc]
            return
        flags = (*_place(namespace), "--ignore-not-found", f"--wait={str(wait).lower()}")
        self.run("delete", kind, *names, *flags)

    def _other(self, kind: str, name: str, namespace: str | None, uid: str) -> bool:
        """Whether the object of that uid is no longer there."""
        found = self.get(kind, name, namespace)
        return found is None or found["metadata"]["uid"] != uid

    def clear(self, *kinds: str, namespace: str, labels: str) -> None:
        """Deletes all of these at once, without a grace period."""
        if all(reach(self.kubeconfig, kind) for kind in kinds):
            for kind in kinds:
                direct = reach(self.kubeconfig, kind)
                assert direct is not None
                with _said("delete", kind):
                    direct.delete_all(kind, namespace, labels=labels)
            return
        now = ("--grace-period=0", "--force")
        self.run("delete", ",".join(kinds), "-n", namespace, "-l", labels, *now)

    def token(self, account: str, namespace: str, *, pod: str = "", seconds: int = 3600) -> str:
        """A new one of a service account; `pod`: it ends with that pod."""
        if direct := reach(self.kubeconfig, "serviceaccount"):
            with _said("create", "token", account):
                return direct.token(account, namespace, pod=pod, seconds=seconds)
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}") if pod else ()
        return self.run("create", "token", account, "-n", namespace, f"--duration={seconds}s", *bound).strip()

    def exec(self, pod: str, *argv: str, namespace: str, container: str = "") -> str:
        """What a command prints in a container; without a name in the pod's first."""
        return self.run("exec", "-n", namespace, pod, *(("-c", container) if container else ()), "--", *argv)

    def logs(self, pod: str, *args: str, namespace: str) -> str:
        return self.run("logs", "-n", namespace, pod, *args)


@dataclass
class Watch:
    """Every state of some objects from now on, each with the moment (time.monotonic) at which it arrived here."""

    kubectl: Kubectl
    args: tuple[str, ...]
    seen: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(
            self.kubectl.argv("get", *self.args, "--watch", "-o", "json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.kubectl.environment(),
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            lines.append(line)
            if line.rstrip() == "}":  # kubectl indents: only the end of an object stands at the start of a line
                self.seen.append((time.monotonic(), json.loads("".join(lines))))
                lines = []

    def first(
        self,
        what: str,
        holds: Callable[[dict[str, Any]], object],
        *,
        after: float,
        seconds: float = CLUSTER_PATIENCE_SECONDS,
    ) -> tuple[float, dict[str, Any]]:
        """When the first state arrived, after that moment, of which this holds, and the state."""

        def look() -> tuple[float, dict[str, Any]] | None:
            return next(((at, one) for at, one in list(self.seen) if at >= after and holds(one)), None)

        return wait_until(what, look, seconds=seconds, every=0.02)


def condition(thing: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """One condition of any object; empty when it has none of that type."""
    conditions = ((thing or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})


def action(thing: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """One action of a NodeDevices; empty when it has none of that name."""
    actions = ((thing or {}).get("status") or {}).get("actions") or []
    return next((one for one in actions if one["name"] == name), {})
