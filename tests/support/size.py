"""`make size`: how large product, tests and pages are, and how much there is to know of it.

Statements are those of the ast, without docstrings, so that neither comments nor the breaking of lines count. What
protoc generates is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from support.repository import ROOT

PRODUCT = ("cli", "crds", "operator", "plugin")
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
Sizes = tuple[int, ...]


def table(root: Path) -> str:
    """Three blocks, each with a line for each folder, and a total; and what users can set and read."""
    product = [path for part in PRODUCT for path in root.glob(f"{part}/*/**/*.py") if not path.stem.endswith("_pb2")]
    pages = [*root.glob("docs/**/*.md"), *(root / name for name in ROOT_PAGES)]
    code = ("files", "lines", "statements")
    return "\n\n".join(
        (
            block("product", code, grouped(product, root)),
            block("tests", code, grouped(root.glob("tests/**/*.py"), root)),
            block("pages", ("files", "lines", "words"), grouped(pages, root)),
            "\n".join([f"{'surface':44}", *(f"  {name:42}{count:12,}" for name, count in surface(root).items())]),
        )
    )


def grouped(paths: Iterable[Path], root: Path) -> dict[str, Sizes]:
    """The sum of the files' sizes of each folder down to the second level, and those of each file in no folder."""
    sums: dict[str, Sizes] = {}
    for path in sorted(paths, key=lambda path: path.parent):
        inside = path.relative_to(root)
        name = "/".join(inside.parent.parts[:2]) or inside.name
        sums[name] = add((sums.get(name, (0, 0, 0)), size(path)))
    return sums


def surface(root: Path) -> dict[str, int]:
    """Flags that the page documents, components, and fields of the CRDs, those of lists' items included."""
    flags = (root / "docs" / "flags.md").read_text().splitlines()
    counts = {
        "flags": sum(line.startswith("| `--") for line in flags),
        "components": sum(1 for _ in root.glob("manifests/components/*/kustomization.yaml")),
    }
    for file in ("devicepolicies", "nodedevices"):
        crd = yaml.safe_load((root / "crds" / f"{file}.yaml").read_text())
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        counts |= {
            f"fields of {crd['spec']['names']['kind']}'s {part}": fields(schema[part]) for part in ("spec", "status")
        }
    return counts


def fields(schema: Any) -> int:
    inner = [
        *schema.get("properties", {}).values(),
        *(schema[key] for key in ("items", "additionalProperties") if key in schema),
    ]
    return len(schema.get("properties", {})) + sum(fields(each) for each in inner if isinstance(each, dict))


def size(path: Path) -> Sizes:
    """A file, its lines, and its statements or words."""
    text = path.read_text()
    return 1, len(text.splitlines()), statements(text) if path.suffix == ".py" else len(text.split())


def statements(text: str) -> int:
    return sum(isinstance(node, ast.stmt) and not is_docstring(node) for node in ast.walk(ast.parse(text)))


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def add(sizes: Iterable[Sizes]) -> Sizes:
    return tuple(map(sum, zip(*sizes, strict=True)))


def block(title: str, columns: tuple[str, ...], sums: Mapping[str, Sizes]) -> str:
    lines = [f"{title:32}" + "".join(f"{column:>12}" for column in columns)]
    for name, sizes in {**sums, "total": add(sums.values())}.items():
        lines.append(f"  {name:30}" + "".join(f"{number:12,}" for number in sizes))
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(ROOT))
