"""TLS for /metrics, and a token that a scrape has to bring, both from files that may be replaced at any time.

Metrics name namespaces and pods. Where a NetworkPolicy is not enough, agent and operator serve them by TLS alone, and
to those alone who send `Authorization: Bearer TOKEN`. Files that cannot be used are no reason to serve without them: at
the start nothing is served until they can be, and later what was good last stays.
"""

from __future__ import annotations

import hmac
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from nodedevices_common.files import Identity, identity

log = structlog.get_logger(__name__)

CHECK_SECONDS = 10.0
TLS_DIR, TOKEN = "metrics-tls-dir", "metrics-token-file"
FORMERLY = ("metrics-cert-file", "metrics-key-file")
ONLY_WITH: Mapping[str, str] = {TOKEN: TLS_DIR}  # flags; a token is sent by TLS alone
CERT, KEY = "tls.crt", "tls.key"  # in a folder, as a Secret of type kubernetes.io/tls is mounted
TLS_HELP = (
    f"directory with `{CERT}` and `{KEY}` (PEM), to serve `--http-address` by TLS; reloaded within ten seconds of a "
    "change; an invalid new pair is ignored"
)
# Not a file of that directory: one that is missing there would have to mean that no token is wanted.
TOKEN_HELP = (
    "file of the token that /metrics requires (`Authorization: Bearer`), "  # noqa: S105  no token
    "with TLS only; reloaded as well"
)


class Guard:
    """Whom /metrics is served to."""

    def __init__(self, folder: Path, token: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._certificate, self._key = folder / CERT, folder / KEY
        self._token_file = token
        self._clock = clock
        self._files = [self._certificate, self._key, *([token] if token is not None else [])]
        self._stamp: list[Identity | None] = []
        self._looked = 0.0
        self._context, self._token = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), b""  # without a certificate

    @classmethod
    def from_folder(
        cls, folder: str | None, token: str | None, *, clock: Callable[[], float] = time.monotonic
    ) -> Guard | None:
        """Return the guard with the certificate in this folder; None where no folder is given."""
        if not folder:
            return None
        return cls(Path(folder), Path(token) if token else None, clock=clock)

    def load(self) -> None:
        """Read the files. OSError where they cannot be used."""
        for file in self._files:
            if not file.is_file():
                raise OSError(f"{file} is not there")
        self._stamp, self._looked = list(map(identity, self._files)), self._clock()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate, self._key)
        token = b"" if self._token_file is None else self._token_file.read_bytes().strip()
        if self._token_file is not None and not token:
            raise OSError(f"{self._token_file} is empty; write a token into it")
        self._context, self._token = context, token

    def context(self) -> ssl.SSLContext:
        """Return what a connection is served by, once the files were loaded."""
        if self._clock() - self._looked >= CHECK_SECONDS:
            self._looked = self._clock()
            if list(map(identity, self._files)) != self._stamp:
                self._reload()
        return self._context

    def allows(self, head: bytes) -> bool:
        """True when this request may have the metrics."""
        if self._token_file is None:
            return True
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            scheme, _, given = value.strip().partition(b" ")
            if name.strip().lower() == b"authorization" and scheme.lower() == b"bearer":
                return hmac.compare_digest(given.strip(), self._token)
        return False

    def _reload(self) -> None:
        try:
            self.load()
        except OSError as error:
            log.warning("failed to reload certificate or token, keeping the previous ones", error=str(error))
        else:
            log.info("certificate and token reloaded")
