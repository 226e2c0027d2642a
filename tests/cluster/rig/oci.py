"""Two tiny images, written by hand as OCI archives: busybox is all that is in them, so no registry is needed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from cluster.rig.problem import RigError

APPLETS = ("sh", "sleep", "cat", "env", "printenv", "ls", "true", "false", "echo", "grep", "id", "mount", "touch", "rm")
FOLDERS = ("bin", "tmp", "dev", "proc", "sys", "etc")


def machine() -> str:
    """The architecture as images name it."""
    name = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)


def busybox_image(archive: Path, reference: str, command: Sequence[str]) -> None:
    """An image of that name with busybox and links for its applets; the same bytes each time."""
    program = shutil.which("busybox")
    if program is None:
        raise RigError("busybox is missing: make cluster-tools installs busybox-static")
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        _add(tar, "bin/busybox", Path(program).read_bytes(), mode=0o755)
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    blobs = [layer.getvalue()]
    configuration = {
        "architecture": machine(),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(blobs[0])]},
    }
    blobs.append(json.dumps(configuration).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described("application/vnd.oci.image.config.v1+json", blobs[1]),
        "layers": [_described("application/vnd.oci.image.layer.v1.tar", blobs[0])],
    }
    blobs.append(json.dumps(manifest).encode())
    entry = _described("application/vnd.oci.image.manifest.v1+json", blobs[2])
    entry["annotations"] = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        for blob in blobs:
            _add(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _described(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
