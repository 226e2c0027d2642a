"""Certificates by the openssl command, and the kubeconfigs made of them. They end with the cluster's folder."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

from cluster.rig.problem import RigError

DAYS = "30"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """One certificate authority in a folder; everything in the cluster trusts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._openssl(
            *("req", "-x509", *EC, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=nodedevices", "-days", DAYS),
            *("-addext", "keyUsage=critical,keyCertSign,digitalSignature,cRLSign"),
        )
        self._openssl("genrsa", "-out", "sa.key", "2048")  # signs service accounts' tokens
        self._openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    def issue(self, name: str, subject: str, names: str = "") -> None:
        """NAME.crt and NAME.key for client and server use; `names` is a subjectAltName like `IP:10.0.0.1,DNS:n1`."""
        self._openssl("req", *EC, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names or f'DNS:{name}'}\nextendedKeyUsage=clientAuth,serverAuth\n")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.crt", "-days", DAYS, "-extfile", extensions.name),
        )

    def kubeconfig(self, path: Path, name: str, server: str) -> None:
        """A kubeconfig that holds everything, so that it works wherever it is copied to."""

        def data(file: str) -> str:
            return base64.b64encode((self.folder / file).read_bytes()).decode()

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "nodedevices", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": data(f"{name}.crt"),
                        "client-key-data": data(f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "nodedevices", "context": {"cluster": "nodedevices", "user": name}}],
            "current-context": "nodedevices",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2) + "\n")

    def _openssl(self, *args: str) -> None:
        done = subprocess.run(["openssl", *args], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RigError(f"openssl {args[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
