"""A few questions to the API server, without the 150 MB of kubectl for each: the rig polls with these."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

QUESTION_SECONDS = 5


class Api:
    """GET as admin; None whenever there is no good answer (yet)."""

    def __init__(self, url: str, pki: Path) -> None:
        self._address = urlsplit(url)
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def get(self, path: str) -> str | None:
        assert self._address.hostname is not None
        connection = http.client.HTTPSConnection(
            self._address.hostname, self._address.port, context=self._context, timeout=QUESTION_SECONDS
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            return text if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def items(self, path: str) -> list[dict[str, Any]]:
        text = self.get(path)
        found: list[dict[str, Any]] = json.loads(text)["items"] if text else []
        return found

    def ready(self) -> bool:
        return self.get("/readyz") is not None
