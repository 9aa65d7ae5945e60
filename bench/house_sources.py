"""The sources as text: lines by room, imports between modules, circles. Nothing is imported or run."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("controller", "gateway", "agent", "http1", "schemas", "cli")
TESTS: Final = ("tests",)
TOOLS: Final = ("bench", "deploy", "docs")
DASHBOARD: Final = ("ui/src", "ui/tests")
_DASHBOARD_FILES: Final = {".ts", ".tsx", ".mjs", ".css", ".html"}
# "top": while the module is imported. "function": when a function runs. "typing": for the type checker alone.
Kind = Literal["top", "function", "typing"]


@dataclass(frozen=True)
class Room:
    """A folder, without those in it."""

    name: str
    files: int
    lines: int


def lines_of(path: Path) -> int:
    """All lines of a file, blank ones and comments included."""
    return len(path.read_text(encoding="utf-8").splitlines())


def rooms(folders: Iterable[str], suffixes: Iterable[str] = (".py",)) -> list[Room]:
    lines_by_room: dict[str, list[int]] = defaultdict(list)
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                lines_by_room[str(path.parent.relative_to(ROOT))].append(lines_of(path))
    return [Room(name, len(lines), sum(lines)) for name, lines in sorted(lines_by_room.items())]


def dashboard_rooms() -> list[Room]:
    return rooms(DASHBOARD, _DASHBOARD_FILES)


@dataclass(frozen=True)
class Lone:
    """A file with one importer."""

    file: str
    lines: int
    importer: str

    @property
    def sibling(self) -> bool:
        return Path(self.file).parent == Path(self.importer).parent


class Imports:
    """The imports among the modules of the six packages, read from their syntax.

    `from a.b import c` is an import of `a.b.c` where that is a module, else of `a.b`. A package's `__init__`, which
    runs before its modules, is left out.
    """

    def __init__(self) -> None:
        paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
        self._paths: Mapping[str, Path] = {_module(path): path for path in sorted(paths)}
        self._edges: dict[Kind, dict[str, set[str]]] = {
            "top": defaultdict(set), "function": defaultdict(set), "typing": defaultdict(set)
        }  # fmt: skip
        for module, path in self._paths.items():
            for imported, kind in _imports(ast.parse(path.read_text(encoding="utf-8")), "top"):
                for name in self._known(imported):
                    if name != module:
                        self._edges[kind][module].add(name)

    def _known(self, imported: tuple[str, str]) -> Iterator[str]:
        module, name = imported
        if f"{module}.{name}" in self._paths:
            yield f"{module}.{name}"
        elif module in self._paths:
            yield module

    @cached_property
    def lone(self) -> list[Lone]:
        """The files with one importer, by any kind of import."""
        importers: dict[str, set[str]] = defaultdict(set)
        for edges in self._edges.values():
            for module, imported in edges.items():
                for name in imported:
                    importers[name].add(module)
        return [
            Lone(_file(path), lines_of(path), _file(self._paths[next(iter(importers[module]))]))
            for module, path in self._paths.items()
            if len(importers[module]) == 1
        ]

    def circles(self, *kinds: Kind) -> list[list[str]]:
        """Groups of modules that reach one another by imports of these kinds; the largest first."""
        graph = {module: set().union(*(self._edges[kind][module] for kind in kinds)) for module in self._paths}
        reached = {module: _reached(graph, module) for module in graph}
        groups: dict[str, list[str]] = {}
        for module in graph:
            if module in reached[module]:
                group = sorted(other for other in reached[module] if module in reached[other])
                groups[group[0]] = group
        return sorted(groups.values(), key=lambda group: (-len(group), group))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _file(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _imports(node: ast.AST, kind: Kind) -> Iterator[tuple[tuple[str, str], Kind]]:
    """Each imported name with its module; for `import a.b` the name is empty."""
    for child in ast.iter_child_nodes(node):
        inner: Kind = kind
        match child:
            case ast.Import():
                yield from (((alias.name, ""), kind) for alias in child.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from (((module, alias.name), kind) for alias in child.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                inner = "typing" if kind == "typing" else "function"
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                inner = "typing"
        yield from _imports(child, inner)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    edge = [start]
    while edge:
        for name in graph[edge.pop()] - reached:
            reached.add(name)
            edge.append(name)
    return reached
