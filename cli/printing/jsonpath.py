r"""Templates of `-o jsonpath=...`, the part of kubectl's language that people type. Pure.

Text outside braces stays. In braces: a path such as `.status.phase`, a text such as `"\n"`, `range PATH` and `end`.
A path: `.name`, `['name']`, `[0]`, `[-1]`, `[0:2]`, `[*]`, `.*`, `..name`, `[?(@.status.phase=="running")]`; within a
range it begins at the item, with `$` at the whole. A dot that belongs to a name is written `\.`, in quotes, too. What
an object does not have prints nothing; objects and lists print as JSON.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from schemas.printing import block, safe_json

Step = Callable[[Any], list[Any]]
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_BRACES: Final = re.compile(r"""\{((?:[^{}"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*)\}""")
_QUOTED: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_NAME: Final = re.compile(r"(?:[^.\[\]\s\\{}()\"'=<>!,]|\\.)+")
_BRACKET: Final = re.compile(r"""\[((?:[^\[\]"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\[\]]*\])*)\]""")
_DOT: Final = re.compile(r"(?<!\\)\.")  # one that parts names; in quotes, too, as kubectl takes it
_INDEX: Final = re.compile(r"-?\d{1,9}")
_SLICE: Final = re.compile(r"(-?\d+)?:(-?\d+)?(?::(\d+))?")
_FILTER: Final = re.compile(r"""\?\(\s*@((?:\[[^\[\]]*\]|[^\[\]=!<>~])*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)""")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Path:
    """A way into an object. `from_root`: it begins at the whole, not at the item of a range."""

    steps: Sequence[Step]
    from_root: bool

    def find(self, item: Any, root: Any) -> list[Any]:
        found = [root if self.from_root else item]
        for step in self.steps:
            found = [value for one in found for value in step(one)]
        return found


@dataclass(frozen=True, slots=True)
class _Range:
    """A path, and what is printed for each value that it finds."""

    path: _Path
    body: "list[str | _Path | _Range]" = field(default_factory=list)


class Template:
    """A template. `text`: as it was written.

    Raises:
        ValueError: it is not valid. The message names the part, and what can be written.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parts_of(text)
        self._matched = False

    def render(self, data: Any) -> tuple[str, bool]:
        """The text for an object, and whether any of its paths found something."""
        self._matched = False
        text = "".join(self._texts(self._parts, data, data))
        return text, self._matched

    def _texts(self, parts: "Sequence[str | _Path | _Range]", item: Any, root: Any) -> Iterator[str]:
        for part in parts:
            if isinstance(part, str):
                yield part
                continue
            if isinstance(part, _Path):
                found = part.find(item, root)
                self._matched |= bool(found)
                yield " ".join(map(_printed, found))
                continue
            for one in part.path.find(item, root):
                self._matched |= all(isinstance(inner, str) for inner in part.body)
                yield from self._texts(part.body, one, root)


def _printed(value: Any) -> str:
    return (
        block(value)
        if isinstance(value, str)
        else safe_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    )


def _parts_of(text: str) -> "list[str | _Path | _Range]":
    parts: list[str | _Path | _Range] = []
    open_ranges: list[list[str | _Path | _Range]] = []
    at = 0
    for found in _BRACES.finditer(text):
        parts += _literal(text[at : found.start()])
        at, inner = found.end(), found[1].strip()
        if inner == "end":
            if not open_ranges:
                raise ValueError("{end} has no {range ...} before it")
            parts = open_ranges.pop()
        elif inner.startswith("range ") or inner == "range":
            each = _Range(_path(inner.removeprefix("range").strip()))
            parts.append(each)
            open_ranges.append(parts)
            parts = each.body
        else:
            parts.append(_unquoted(inner) if _QUOTED.fullmatch(inner) else _path(inner))
    parts += _literal(text[at:])
    if open_ranges:
        raise ValueError("{range ...} has no {end}")
    if not any(not isinstance(part, str) for part in parts):
        raise ValueError(f"{text!r} has no path in braces; write for example {{.status.phase}} or {{.items[*].name}}")
    return parts


def _literal(text: str) -> list[str]:
    if "{" in text or "}" in text:
        raise ValueError(f"a brace is not closed, or not opened, at {text!r}")
    return [text] if text else []


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])


def _path(text: str) -> _Path:
    if not text:
        raise ValueError("braces are empty; write for example {.status.phase}")
    rest = text[1:] if text[0] in "$@" else text
    if rest == ".":
        return _Path((), text[0] == "$")
    if rest[:1] not in (".", "[", ""):
        rest = "." + rest  # kubectl takes {items[*].name}, too
    return _Path(tuple(_steps(rest, text)), text[0] == "$")


def _steps(rest: str, whole: str) -> Iterator[Step]:
    while rest:
        if rest.startswith(".."):
            yield _deep
            rest = rest[1:] if rest[2:3] != "[" else rest[2:]
        elif found := _BRACKET.match(rest):
            yield _in_brackets(found[1].strip(), whole)
            rest = rest[found.end() :]
        elif rest.startswith(".*"):
            yield _every
            rest = rest[2:]
        elif rest.startswith(".") and (found := _NAME.match(rest, 1)):
            yield _member(re.sub(r"\\(.)", r"\1", found[0]))
            rest = rest[found.end() :]
        else:
            raise _unknown(rest, whole)


def _in_brackets(inner: str, whole: str) -> Step:
    if inner == "*":
        return _every
    if inner.startswith("?"):
        return _filter(inner, whole)
    if found := _SLICE.fullmatch(inner):
        begin, end, pace = (None if one is None else int(one) for one in found.groups())
        if pace == 0:
            raise ValueError(f"{{{whole}}}: the third number of a slice is at least 1")
        return lambda value: value[begin:end:pace] if isinstance(value, list) else []
    if _QUOTED.fullmatch(inner):
        return _within([_unquoted(f"'{name}'") for name in _DOT.split(inner[1:-1])])
    if not _INDEX.fullmatch(inner):
        raise _unknown(f"[{inner}]", whole)
    index = int(inner)
    return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _filter(inner: str, whole: str) -> Step:
    found = _FILTER.fullmatch(inner)
    if found is None:
        raise ValueError(f'{{{whole}}}: write a filter such as [?(@.status.phase=="running")], without && and ||')
    path, word, right = _path("@" + found[1]), found[2], found[3]
    if word is None:
        return lambda value: [one for one in _items(value) if path.find(one, one)]
    wanted, compare = _constant(right, whole), _COMPARE[word]
    return lambda value: [one for one in _items(value) if any(_so(compare, x, wanted) for x in path.find(one, one))]


def _constant(text: str, whole: str) -> Any:
    if _QUOTED.fullmatch(text):
        return _unquoted(text)
    try:
        value = json.loads(text)
    except ValueError:
        value = []
    if isinstance(value, list | dict):
        raise ValueError(f"{{{whole}}}: {text} is not a quoted text, a number, true, false or null")  # noqa: TRY004
    return value


def _so(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return compare is ne  # to Python, true is 1
    try:
        return compare(left, right)
    except TypeError:  # a text is neither more nor less than a number
        return False


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def _every(value: Any) -> list[Any]:
    return list(_items(value))


def _member(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _within(names: Sequence[str]) -> Step:
    """The value at the end of names."""
    path = _Path([_member(name) for name in names], from_root=False)
    return lambda value: path.find(value, value)


def _deep(value: Any) -> list[Any]:
    """The value and all within it, outermost first."""
    return [value, *(inner for one in _items(value) for inner in _deep(one))]


def _unknown(rest: str, whole: str) -> ValueError:
    return ValueError(
        f"{{{whole}}}: cannot read {rest!r}; a path has .name, ['name'], [0], [0:2], [*], ..name and "
        '[?(@.name=="text")], and texts stand in braces of their own: {"\\n"}'
    )
