"""Writes the protobuf modules from the vendored .proto files.

    python -m nodedevices_plugin.kubelet.api.generate [--check]

`--check` writes nothing and fails when a module differs from its source. Needs grpcio-tools, pinned in pyproject.toml:
its version is the oldest that we support, since generated code requires at least the protobuf runtime of its compiler
(1.76.0 requires protobuf >= 6.31.1).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]  # the folder that holds the package: generated imports and pool names are relative to it
SUFFIXES = ("_pb2.py", "_pb2.pyi")
HEADER = "# Generated from {} by nodedevices_plugin.kubelet.api.generate (make gen). Apache-2.0.\n"


def rendered() -> dict[str, str]:
    """Module file name -> its text, for every vendored .proto file."""
    from grpc_tools import protoc  # noqa: PLC0415  a development tool, not there at run time

    sources = sorted(HERE.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        names = [str(source.relative_to(ROOT)) for source in sources]
        status = protoc.main(["protoc", f"-I{ROOT}", f"--python_out={folder}", f"--pyi_out={folder}", *names])
        if status != 0:
            raise SystemExit(f"protoc failed with status {status} on {', '.join(names)}")
        made = Path(folder) / HERE.relative_to(ROOT)
        return {
            f"{source.stem}{suffix}": HEADER.format(source.name) + (made / f"{source.stem}{suffix}").read_text(encoding="utf-8")
            for source in sources
            for suffix in SUFFIXES
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nodedevices_plugin.kubelet.api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a module is not up to date")
    options = parser.parse_args(arguments)
    modules = rendered()
    present = {path.name: path.read_text(encoding="utf-8") for suffix in SUFFIXES for path in HERE.glob(f"*{suffix}")}
    if not options.check:
        for name, text in modules.items():
            (HERE / name).write_text(text, encoding="utf-8")
        for name in present.keys() - modules.keys():
            (HERE / name).unlink()
        return 0
    differing = sorted(name for name in modules.keys() | present.keys() if modules.get(name) != present.get(name))
    for name in differing:
        sys.stderr.write(f"{HERE / name} differs from its source; run: make gen\n")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
