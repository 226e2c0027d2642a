"""Certificate authorities of a test's own, by the openssl command, and what they sign."""

from __future__ import annotations

import subprocess
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


class TestAuthority:
    """One authority; `certificate` is what a client must trust."""

    __test__ = False

    def __init__(self, folder: Path, name: str) -> None:
        self.certificate = folder / f"{name}.crt"
        self._folder, self._name = folder, name
        _openssl(
            *("req", "-x509", *KEY, "-keyout", f"{folder / name}.key", "-out", str(self.certificate)),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
        )

    def server(self) -> Path:
        """Certificate and key of a server at 127.0.0.1, in one file."""
        made = self._folder / f"{self._name}-server.pem"
        key = made.with_suffix(".key")
        _openssl(
            *("req", "-x509", *KEY, "-keyout", str(key), "-out", str(made), "-subj", "/CN=server"),
            *("-CA", str(self.certificate), "-CAkey", f"{self._folder / self._name}.key"),
            *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1"),
        )
        made.write_text(made.read_text() + key.read_text())
        return made


def self_signed(folder: Path, name: str) -> None:
    """A certificate of 127.0.0.1 that whoever trusts it has as its authority, and its key: tls.crt and tls.key."""
    made, key = folder / "tls.crt", folder / "tls.key"
    extension = ("-addext", "subjectAltName=IP:127.0.0.1")
    _openssl("req", "-x509", *KEY, "-keyout", str(key), "-out", str(made), "-subj", f"/CN={name}", *extension)


def _openssl(*args: str) -> None:
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
