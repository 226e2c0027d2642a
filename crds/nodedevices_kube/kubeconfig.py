"""Kubeconfig files, read as kubectl reads them: `--kubeconfig`, else the files of $KUBECONFIG merged (of two entries of
one name the first counts), else ~/.kube/config, else the service account of the pod that this runs in.

Paths in a file are relative to the file. A field that kubectl would act on and we do not know is refused, never
ignored: a connection that is less protected than the file says would be worse than none.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodedevices_common.errors import InputError
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.safe_yaml import load
from nodedevices_common.text import nearest, show

from nodedevices_kube import SERVICE_ACCOUNT
from nodedevices_kube.errors import KubeconfigError

MAX_BYTES = 4 << 20
MAX_VALUES = 200_000
# Fields that are acted on as kubectl does it, or that change nothing here.
CLUSTER = {
    *("server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify"),
    *("tls-server-name", "proxy-url", "disable-compression", "extensions"),
}
USER = {
    *("token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data"),
    *("username", "password", "exec", "as", "as-uid", "as-groups", "extensions"),
}
EXEC = {"apiVersion", "command", "args", "env", "installHint", "provideClusterInfo", "interactiveMode"}


@dataclass(frozen=True, slots=True)
class Cluster:
    server: str
    authority: bytes = b""  # PEM; empty: the system's
    insecure: bool = False
    tls_name: str = ""
    proxy: str = ""
    raw: Mapping[str, Any] | None = None  # for exec plugins that want to know


@dataclass(frozen=True, slots=True)
class User:
    token: str = ""
    token_file: Path | None = None
    certificate: bytes = b""  # PEM
    key: bytes = b""
    name: str = ""  # of basic authentication
    password: str = ""
    command: Mapping[str, Any] | None = None  # an exec plugin
    act_as: str = ""
    act_as_uid: str = ""
    act_as_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    name: str
    namespace: str
    cluster: Cluster
    user: User


@dataclass(frozen=True, slots=True)
class _Entry:
    value: Mapping[str, Any]
    file: Path

    def text(self, key: str) -> str:
        return text(self.value.get(key))


class Kubeconfig:
    """The merged files."""

    def __init__(self, files: list[Path]) -> None:
        self.current = ""
        self._entries: dict[str, dict[str, _Entry]] = {"clusters": {}, "users": {}, "contexts": {}}
        self._files = ", ".join(map(str, files))
        for file in files:
            self._add(file)

    def _add(self, file: Path) -> None:
        try:
            if file.stat().st_size > MAX_BYTES:
                raise KubeconfigError(f"kubeconfig {file}: larger than {MAX_BYTES >> 20} MiB; is it one?")
            found = load(file.read_bytes(), max_values=MAX_VALUES)
        except OSError as error:
            raise KubeconfigError(
                f"kubeconfig {file}: {error.strerror}; give --kubeconfig or set KUBECONFIG"
            ) from error
        except InputError as error:
            raise KubeconfigError(f"kubeconfig {file}: {error}") from error
        if found is not None and not isinstance(found, dict):
            raise KubeconfigError(f"kubeconfig {file}: not a kubeconfig but {show(found)}")
        content = mapping(found)
        self.current = self.current or text(content.get("current-context"))
        for kind, entries in self._entries.items():
            for named in mappings(content.get(kind)):
                entries.setdefault(text(named.get("name")), _Entry(mapping(named.get(kind[:-1])), file))

    @property
    def contexts(self) -> list[str]:
        return list(self._entries["contexts"])

    def server(self, context: str) -> str:
        """The address of its API server; empty where the kubeconfig does not say."""
        nothing = _Entry({}, Path())
        cluster = self._entries["contexts"].get(context, nothing).text("cluster")
        return self._entries["clusters"].get(cluster, nothing).text("server")

    def context(self, name: str) -> Context:
        """The context of this name; empty: the current one."""
        wanted = name or self.current
        if not wanted:
            raise KubeconfigError(
                f"kubeconfig {self._files}: no current-context; give --context{nearest('', self.contexts)}"
            )
        found = self._need("contexts", wanted, "--context " if name else "current-context ")
        cluster, user = found.text("cluster"), found.text("user")
        return Context(
            wanted,
            found.text("namespace") or "default",
            _cluster(self._need("clusters", cluster, f"context {wanted}: cluster "), cluster),
            _user(self._need("users", user, f"context {wanted}: user "), user) if user else User(),
        )

    def _need(self, kind: str, name: str, what: str) -> _Entry:
        found = self._entries[kind].get(name)
        if found is None:
            raise KubeconfigError(
                f"{what}{show(name)}: kubeconfig {self._files} has none of that name"
                f"{nearest(name, self._entries[kind])}"
            )
        return found


def find(explicit: str | None, environment: Mapping[str, str]) -> Kubeconfig | None:
    """The kubeconfig to use; None: this runs in a pod, with a service account alone."""
    if explicit:
        return Kubeconfig([Path(explicit).expanduser()])
    if named := environment.get("KUBECONFIG", "").strip(os.pathsep):
        return read(named)
    usual = Path(environment.get("HOME") or "~").expanduser() / ".kube" / "config"
    if usual.exists():
        return Kubeconfig([usual])
    if "KUBERNETES_SERVICE_HOST" in environment and (SERVICE_ACCOUNT / "token").exists():
        return None
    raise KubeconfigError(f"no kubeconfig: {usual} does not exist; give --kubeconfig or set KUBECONFIG")


def read(named: str) -> Kubeconfig:
    """Read the files of a list as KUBECONFIG has it; those that do not exist are left out."""
    files = [Path(name).expanduser() for name in named.split(os.pathsep) if name]
    there = [file for file in files if file.exists()]
    if not there:
        raise KubeconfigError(f"kubeconfig {named}: no such file")
    return Kubeconfig(there)


def of_service_account(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Context:
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT") or "443"
    try:
        authority = (folder / "ca.crt").read_bytes()
        namespace = (folder / "namespace").read_text().strip() or "default"
    except OSError as error:
        raise KubeconfigError(f"the pod's service account: {error}") from error
    if not host or not authority:  # without a CA of its own the system's would count
        what = "ca.crt is empty" if host else "KUBERNETES_SERVICE_HOST is not set"
        raise KubeconfigError(f"the pod's service account: {what}")
    cluster = Cluster(f"https://{f'[{host}]' if ':' in host else host}:{port}", authority)
    return Context("in-cluster", namespace, cluster, User(token_file=folder / "token"))


def _cluster(entry: _Entry, name: str) -> Cluster:
    _known(entry, f"cluster {name}", entry.value, CLUSTER)
    server, insecure = entry.text("server"), entry.value.get("insecure-skip-tls-verify") is True
    if not server.startswith(("https://", "http://")):
        raise KubeconfigError(f"kubeconfig {entry.file}: cluster {name}: server {show(server)}: give https://HOST:PORT")
    authority = _content(entry, "certificate-authority")
    if authority and insecure:
        raise KubeconfigError(
            f"kubeconfig {entry.file}: cluster {name}: certificate-authority and insecure-skip-tls-verify: give one"
        )
    return Cluster(server, authority, insecure, entry.text("tls-server-name"), entry.text("proxy-url"), entry.value)


def _user(entry: _Entry, name: str) -> User:
    raw = entry.value
    if "auth-provider" in raw:
        raise KubeconfigError(
            f"kubeconfig {entry.file}: user {name}: auth-provider: not possible here; use an exec plugin, such as "
            "kubelogin, gke-gcloud-auth-plugin or aws eks get-token"
        )
    command = dict(mapping(raw.get("exec")))
    for what, fields, known in ((f"user {name}", raw, USER), (f"user {name}: exec", command, EXEC)):
        _known(entry, what, fields, known)
    if "/" in text(command.get("command")):  # else it is looked for in the PATH
        command["command"] = str(entry.file.absolute().parent / command["command"])
    file, groups = entry.text("tokenFile"), raw.get("as-groups")
    return User(
        token=entry.text("token"),
        token_file=entry.file.parent / file if file else None,
        certificate=_content(entry, "client-certificate"),
        key=_content(entry, "client-key"),
        name=entry.text("username"),
        password=entry.text("password"),
        command=command or None,
        act_as=entry.text("as"),
        act_as_uid=entry.text("as-uid"),
        act_as_groups=tuple(filter(None, map(text, groups))) if isinstance(groups, list) else (),
    )


def _known(entry: _Entry, what: str, fields: Mapping[str, Any], known: Set[str]) -> None:
    if unknown := [key for key, value in fields.items() if key not in known and value]:
        raise KubeconfigError(f"kubeconfig {entry.file}: {what}: {', '.join(unknown)}: not possible here")


def _content(entry: _Entry, key: str) -> bytes:
    """PEM, from the file itself (`<key>-data`) or from the one that it names."""
    if data := entry.text(f"{key}-data"):
        try:
            return base64.b64decode(data, validate=False)
        except binascii.Error as error:
            raise KubeconfigError(f"kubeconfig {entry.file}: {key}-data: not base64") from error
    name = entry.text(key)
    if not name:
        return b""
    try:
        return (entry.file.parent / name).read_bytes()
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {entry.file}: {key} {name}: {error.strerror}") from error


# --- what a user authenticates with ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credentials:
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    certificate: bytes = field(repr=False, default=b"")
    key: bytes = field(repr=False, default=b"")


def credentials(context: Context, login: Callable[[Context, Raw], Raw] | None = None) -> Credentials:
    """Read the token's file, or run the exec plugin by `login`, where there is one, which returns the status of the
    ExecCredential that it prints. Raises KubeconfigError."""
    user = context.user
    token, certificate, key = user.token, user.certificate, user.key
    if user.token_file is not None:
        try:
            token = user.token_file.read_text().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not text"
            raise KubeconfigError(f"context {context.name}: tokenFile {user.token_file}: {why}") from error
    if user.command is not None and not (token or certificate):
        if login is None:
            raise KubeconfigError(f"context {context.name}: exec: not possible here; give a token or a certificate")
        status = login(context, user.command)
        token = text(status.get("token"))
        certificate = text(status.get("clientCertificateData")).encode()
        key = text(status.get("clientKeyData")).encode()
    if len(user.act_as_groups) > 1:
        raise KubeconfigError(f"context {context.name}: as-groups: give one group; more are not possible here")
    basic = base64.b64encode(f"{user.name}:{user.password}".encode()).decode()
    wanted = {
        "Authorization": f"Bearer {token}" if token else f"Basic {basic}" if user.name else "",
        "Impersonate-User": user.act_as,
        "Impersonate-Uid": user.act_as_uid,
        "Impersonate-Group": "".join(user.act_as_groups),
    }
    headers = {name: value for name, value in wanted.items() if value}
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):  # an error of http.client's would show it
            raise KubeconfigError(f"context {context.name}: what it has for {name} has characters that no header has")
    return Credentials(headers, certificate, key)
