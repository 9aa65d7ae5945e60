"""Every await of a set of modules, by name, and the awaits at which a running coroutine stands.

A name is `folder.module.function[n]`, the n-th await of that function. An `async with` has two: `…[n] enter` and
`…[n] exit`.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, ModuleType

Span = tuple[int, int, int, int]  # first line, last line, first column, last column


@dataclass(frozen=True)
class _Site:
    name: str
    span: Span
    is_with: bool

    def covers(self, line: int) -> bool:
        return self.span[0] <= line <= self.span[1]


class Awaits:
    """The awaits in the source of these modules."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._sites = {str(m.__file__): tuple(_sites_of(m)) for m in modules}
        self._standing: dict[tuple[CodeType, int], _Site | None] = {}  # by instruction

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the source."""
        return tuple(
            name
            for sites in self._sites.values()
            for site in sites
            for name in ((f"{site.name} enter", f"{site.name} exit") if site.is_with else (site.name,))
        )

    def here(self, *, leaving: bool) -> tuple[str, ...]:
        """The awaits at which the callers of this function stand, innermost first.

        Args:
            leaving: whether an `async with` among them is being left, not entered.
        """
        found: list[str] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            sites = self._sites.get(frame.f_code.co_filename, ())
            site = self._site(frame, sites) if sites else None
            if site is not None:
                # Only the innermost `async with` is being left; one further out is inside its body, at another await.
                found.append(f"{site.name} {'exit' if leaving else 'enter'}" if site.is_with else site.name)
            frame = frame.f_back
        return tuple(found)

    def _site(self, frame: FrameType, sites: tuple[_Site, ...]) -> _Site | None:
        key = frame.f_code, frame.f_lasti
        if key not in self._standing:
            self._standing[key] = _standing_at(frame, sites)
        return self._standing[key]


def _standing_at(frame: FrameType, sites: tuple[_Site, ...]) -> _Site | None:
    line, last, column, last_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or last is None or column is None or last_column is None:
        return None
    exact = next((s for s in sites if not s.is_with and s.span == (line, last, column, last_column)), None)
    return exact or next((s for s in sites if s.is_with and s.covers(line)), None)


def _sites_of(module: ModuleType) -> Iterator[_Site]:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for qualified, function in _functions(tree, ".".join(module.__name__.rsplit(".", 2)[-2:])):
        for n, node in enumerate(_own_awaits(function)):
            name = f"{qualified}[{n}]"
            if isinstance(node, ast.Await):
                span = (node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
                yield _Site(name, span, is_with=False)
            else:
                yield _Site(name, (node.lineno, node.body[0].lineno - 1, 0, 0), is_with=True)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}"
            if isinstance(child, ast.AsyncFunctionDef):
                yield name, child
            yield from _functions(child, name)


def _own_awaits(function: ast.AST) -> Iterator[ast.Await | ast.AsyncWith]:
    """In the order of the source, without those of inner functions."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.AsyncFor):
            raise TypeError("an `async for` stands here: teach this module to name it")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Await | ast.AsyncWith):
            yield child
        yield from _own_awaits(child)
