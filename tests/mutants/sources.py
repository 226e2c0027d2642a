"""Every small change of a module that somebody could make by mistake: a place of its text, and what is there instead.

Changed are comparisons, `and` and `or`, conditions, operators, numbers, words, what is returned, and statements that
only do something. Left alone: docstrings and other sentences, annotations, decorators and what is inside an f-string,
because no decision follows from them. A place is counted in bytes, as `ast` does.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
}
CALCULATED: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.FloorDiv(),
    ast.FloorDiv: ast.Mult(),
    ast.Div: ast.Mult(),
    ast.Mod: ast.FloorDiv(),
    ast.BitOr: ast.BitAnd(),
    ast.BitAnd: ast.BitOr(),
    ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(),
}
PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)  # a condition without an operator that could be another
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
CALLED |= {"startswith": "endswith", "endswith": "startswith", "removeprefix": "removesuffix"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes from `start` to `end` of the file read `instead`."""

    path: Path
    line: int  # the first line of the statement, by which the tests that run it are known
    last: int
    at_import: bool  # outside of a function: run when the module is loaded, whichever test uses it
    start: int
    end: int
    instead: str

    def text(self) -> str:
        source = self.path.read_bytes()
        return (source[: self.start] + self.instead.encode() + source[self.end :]).decode()

    def diff(self, root: Path) -> str:
        name = str(self.path.relative_to(root))
        lines = difflib.unified_diff(
            self.path.read_text().splitlines(), self.text().splitlines(), name, name, lineterm="", n=2
        )
        return "\n".join(lines)


def mutants(path: Path) -> list[Mutant]:
    """All of a file, in the order of its text."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, statement, at_import in _within(ast.parse(source), None, True):
        for instead in _instead(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            found.append(Mutant(path, statement.lineno, _last_line(statement), at_import, start, end, instead))
    return sorted(found, key=lambda each: (each.start, each.end, each.instead))


def _last_line(statement: ast.stmt) -> int:
    """Of the statement itself, without the block that it opens."""
    body: list[ast.stmt] = getattr(statement, "body", [])
    return max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno


Place = tuple[ast.expr | ast.stmt, ast.stmt, bool]


def _within(node: ast.AST, statement: ast.stmt | None, at_import: bool) -> Iterator[Place]:
    if isinstance(node, ast.stmt):
        statement = node
    if statement is not None and isinstance(node, (ast.expr, ast.stmt)):
        yield node, statement, at_import
    if statement is not None and isinstance(node, (ast.If, ast.While)) and isinstance(node.test, PLAIN):
        yield (
            ast.copy_location(ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node.test)), node.test),
            statement,
            at_import,
        )
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.JoinedStr):
            continue
        inner = at_import and not (field == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST) and not _says_nothing(each):
                yield from _within(each, statement, inner)


def _says_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.If):  # if TYPE_CHECKING
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):  # a docstring
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.keyword):  # an assertion: what is zipped is as long; and what a constructor takes
        return node.arg in {"strict", "init"}
    if isinstance(node, ast.Assign):  # what a package shows, which mypy checks
        return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    if isinstance(node, ast.Subscript):  # a type: Literal["a"]
        return isinstance(node.value, ast.Name) and node.value.id == "Literal"
    if isinstance(node, ast.Call):  # what a type's variable is called
        return isinstance(node.func, ast.Name) and node.func.id in {"NewType", "ParamSpec", "TypeVar"}
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _instead(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(left, operators, comparators):
            for at, operator in enumerate(operators):
                others = [*operators[:at], COMPARED[type(operator)], *operators[at + 1 :]]
                yield _text(ast.Compare(left, others, comparators))
        case ast.BoolOp(ast.And(), values):
            yield _text(ast.BoolOp(ast.Or(), values))
        case ast.BoolOp(ast.Or(), values):
            yield _text(ast.BoolOp(ast.And(), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield _text(operand)
        case ast.BinOp(left, operator, right) if type(operator) in CALCULATED:
            yield _text(ast.BinOp(left, CALCULATED[type(operator)], right))
        case ast.Constant(value):
            yield from _another(value)
        case ast.Name(name) if name in CALLED and isinstance(node.ctx, ast.Load):
            yield CALLED[name]
        case ast.Attribute(value, name) if name in CALLED:
            yield _text(ast.Attribute(value, CALLED[name], ast.Load()))
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for at, part in enumerate(node.generators):
                for which in range(len(part.ifs)):
                    kept = ast.comprehension(
                        part.target, part.iter, [*part.ifs[:which], *part.ifs[which + 1 :]], part.is_async
                    )
                    yield _with_generators(node, [*node.generators[:at], kept, *node.generators[at + 1 :]])
        case ast.IfExp(test, body, orelse):
            yield _text(ast.IfExp(test, orelse, body))
        case ast.Return(ast.Constant("")):  # None would decide the same
            yield "return 'XX'"
        case ast.Return(value) if value is not None and not _is_no(value):
            yield "return None"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _is_no(value: ast.expr) -> bool:
    """True for None, and for False, in whose place it would decide the same."""
    return isinstance(value, ast.Constant) and (value.value is None or value.value is False)


def _another(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, (int, float)):
        yield repr(value + 1)
    elif isinstance(value, str) and value and not any(map(str.isspace, value)):  # a word, not a sentence
        yield repr(f"XX{value}")


def _with_generators(
    node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, generators: list[ast.comprehension]
) -> str:
    if isinstance(node, ast.DictComp):
        return ast.unparse(ast.DictComp(node.key, node.value, generators))
    return ast.unparse(type(node)(node.elt, generators))


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"
