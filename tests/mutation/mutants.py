"""Mutants of a module: copies that differ in one expression or statement. Pure."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of a module. `function` is its qualified name, empty at the level of the module."""

    path: str
    line: int
    function: str
    before: str
    after: str
    number: int  # of the changes of its module, in the order of `_changes`


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = []
    for number, (node, changed, function) in enumerate(_changes(tree)):
        found.append(Mutant(path, node.lineno, function, _text(node), _text(changed), number))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """The module with one change. Lines keep their numbers."""
    tree = ast.parse(source)
    for at, (node, changed, _) in enumerate(_changes(tree)):
        if at == number:
            return ast.fix_missing_locations(_Replace(node, changed).visit(tree))
    raise IndexError(number)


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, changed: ast.AST) -> None:
        self._node, self._changed = node, changed

    def visit(self, node: ast.AST) -> ast.AST:
        return self._changed if node is self._node else super().visit(node)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt, str]]:
    yield from _within(tree, "")


def _within(parent: ast.AST, function: str) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt, str]]:
    for node in _children(parent):
        here = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            here = f"{function}.{node.name}" if function else node.name
        if isinstance(node, ast.expr | ast.stmt):
            for changed in _changed(node):
                yield node, ast.copy_location(changed, node), function
        yield from _within(node, here)


def _children(parent: ast.AST) -> Iterator[ast.AST]:
    """The nodes that a mutant may change."""
    for name, value in ast.iter_fields(parent):
        if name not in {"annotation", "returns", "decorator_list", "bases"}:
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST) and not _is_left_alone(node):
                    yield node


def _is_left_alone(node: ast.AST) -> bool:
    """Imports, texts for people, errors, and checks for the type checker decide nothing."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Assert() | ast.Raise():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__slots__")]):
            return True
        case _:
            return False


def _changed(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:  # noqa: C901, PLR0912
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                changed = copy.copy(node)
                changed.ops = [*node.ops[:at], _COMPARISONS[type(operator)](), *node.ops[at + 1 :]]
                yield changed
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for at in range(len(node.values)):
                left = [*node.values[:at], *node.values[at + 1 :]]
                yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.UnaryOp(op=ast.USub()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _OPERATORS and not _is_text(node):
            yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield ast.Call(ast.Name(_CALLS[name], ast.Load()), node.args, node.keywords)
        case ast.If() | ast.While():
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield changed
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.AugAssign():
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case _:
            return


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:100]
