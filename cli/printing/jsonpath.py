r"""Templates of `-o jsonpath=...`, the part of kubectl's language that people type. Pure.

Text outside braces stays. In braces: a path such as `.status.phase`, a text such as `"\n"`, `range PATH` and `end`.
A path: `.name`, `['name']`, `[0]`, `[-1]`, `[0:2]`, `[*]`, `.*`, `..name`, `[?(@.status.phase=="running")]`; within a
range it begins at the item, and with `$` at the object. A dot that belongs to a name is written `\.`, also in quotes.
A missing field prints nothing; objects and lists print as JSON.

Libraries read paths of RFC 9535 or their own, without templates, `range` and kubectl's dots, so this is our own code.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from schemas.printing import block, safe_json

Step = Callable[[Any], list[Any]]
Find = Callable[[Any, Any], list[Any]]  # the values of a path, for an item and the object that contains it
Part = str | Find | tuple[Find, list[Any]]  # a text; a path; a range with its parts
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_BRACES: Final = re.compile(r"""\{((?:[^{}"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*)\}""")
_QUOTED: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_NAME: Final = re.compile(r"(?:[^.\[\]\s\\{}()\"'=<>!,]|\\.)+")
_BRACKET: Final = re.compile(r"""\[((?:[^\[\]"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\[\]]*\])*)\]""")
_DOT: Final = re.compile(r"(?<!\\)\.")  # separates names, also in quotes, as in kubectl
_INDEX: Final = re.compile(r"-?\d{1,9}")
_SLICE: Final = re.compile(r"(-?\d+)?:(-?\d+)?(?::(\d+))?")
_FILTER: Final = re.compile(r"""\?\(\s*@((?:\[[^\[\]]*\]|[^\[\]=!<>~])*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)""")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


class Template:
    """Raises `ValueError` for an invalid template, with the part and the valid forms."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parts_of(text)
        self._matched = False

    def render(self, data: Any) -> tuple[str, bool]:
        """The text for an object; and True if any path had a value."""
        self._matched = False
        text = "".join(self._texts(self._parts, data, data))
        return text, self._matched

    def _texts(self, parts: Sequence[Part], item: Any, root: Any) -> Iterator[str]:
        for part in parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, tuple):
                path, body = part
                for value in path(item, root):
                    self._matched |= all(isinstance(inner, str) for inner in body)
                    yield from self._texts(body, value, root)
            else:
                values = part(item, root)
                self._matched |= bool(values)
                yield " ".join(map(_printed, values))


def _printed(value: Any) -> str:
    return (
        block(value)
        if isinstance(value, str)
        else safe_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    )


def _parts_of(text: str) -> list[Part]:
    parts: list[Part] = []
    open_ranges: list[list[Part]] = []
    at = 0
    for match in _BRACES.finditer(text):
        parts += _literal(text[at : match.start()])
        at, inner = match.end(), match[1].strip()
        if inner == "end":
            if not open_ranges:
                raise ValueError("{end} has no {range ...} before it")
            parts = open_ranges.pop()
        elif inner.startswith("range ") or inner == "range":
            body: list[Part] = []
            parts.append((_path(inner.removeprefix("range").strip()), body))
            open_ranges.append(parts)
            parts = body
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
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


def _path(text: str) -> Find:
    if not text:
        raise ValueError("braces are empty; write for example {.status.phase}")
    rest = text[1:] if text[0] in "$@" else text
    if rest == ".":
        rest = ""
    elif rest[:1] not in (".", "[", ""):
        rest = "." + rest  # kubectl also accepts {items[*].name}
    steps = tuple(_steps(rest, text))

    def find(item: Any, root: Any) -> list[Any]:
        values = [root if text[0] == "$" else item]
        for step in steps:
            values = [inner for value in values for inner in step(value)]
        return values

    return find


def _steps(rest: str, path: str) -> Iterator[Step]:
    while rest:
        if rest.startswith(".."):
            yield _deep
            rest = rest[1:] if rest[2:3] != "[" else rest[2:]
        elif match := _BRACKET.match(rest):
            yield _in_brackets(match[1].strip(), path)
            rest = rest[match.end() :]
        elif rest.startswith(".*"):
            yield _items
            rest = rest[2:]
        elif rest.startswith(".") and (match := _NAME.match(rest, 1)):
            yield partial(_within, names=[re.sub(r"\\(.)", r"\1", match[0])])
            rest = rest[match.end() :]
        else:
            raise _unknown(rest, path)


def _in_brackets(inner: str, path: str) -> Step:
    if inner == "*":
        return _items
    if inner.startswith("?"):
        return _filter(inner, path)
    if match := _SLICE.fullmatch(inner):
        start, end, step = (None if number is None else int(number) for number in match.groups())
        if step == 0:
            raise ValueError(f"{{{path}}}: the third number of a slice is at least 1")
        return lambda value: value[start:end:step] if isinstance(value, list) else []
    if _QUOTED.fullmatch(inner):
        names = [_unquoted(f"'{name}'") for name in _DOT.split(inner[1:-1])]
        return partial(_within, names=names)
    if not _INDEX.fullmatch(inner):
        raise _unknown(f"[{inner}]", path)
    index = int(inner)
    return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _filter(inner: str, path: str) -> Step:
    match = _FILTER.fullmatch(inner)
    if match is None:
        raise ValueError(f'{{{path}}}: write a filter such as [?(@.status.phase=="running")], without && and ||')
    find, operator, right = _path("@" + match[1]), match[2], match[3]
    if operator is None:
        return lambda value: [item for item in _items(value) if find(item, item)]
    wanted, compare = _constant(right, path), _COMPARE[operator]
    return lambda value: [item for item in _items(value) if any(_holds(compare, x, wanted) for x in find(item, item))]


def _constant(text: str, path: str) -> Any:
    if _QUOTED.fullmatch(text):
        return _unquoted(text)
    try:
        value = json.loads(text)
    except ValueError:
        value = []
    if isinstance(value, list | dict):
        raise ValueError(f"{{{path}}}: {text} is not a quoted text, a number, true, false or null")  # noqa: TRY004
    return value


def _holds(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return compare is ne  # in Python, true is 1
    try:
        return compare(left, right)
    except TypeError:  # a text and a number have no order
        return False


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def _within(value: Any, names: Sequence[str]) -> list[Any]:
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return []
        value = value[name]
    return [value]


def _deep(value: Any) -> list[Any]:
    """The value and all values in it, outermost first."""
    return [value, *(inner for item in _items(value) for inner in _deep(item))]


def _unknown(rest: str, path: str) -> ValueError:
    return ValueError(
        f"{{{path}}}: cannot read {rest!r}; a path has .name, ['name'], [0], [0:2], [*], ..name and "
        '[?(@.name=="text")], and texts are in braces of their own: {"\\n"}'
    )
