"""A strict parser of YAML and JSON: limited size and depth, no aliases, no duplicate keys, only values that JSON has.

It returns plain dicts, lists and scalars.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import yaml

from schemas.manifest.problems import FieldProblem, ManifestError, join_path

MAX_TEXT_BYTES: Final = 2**20
MAX_DEPTH: Final = 32
MAX_KEY: Final = 4096  # as every text that a key may represent
# Characters of the paths of all values. Pydantic writes the path of each value that it refuses, so a mebibyte of small
# values under one long key would take gigabytes.
MAX_PATHS: Final = 2**25
_INDEX_CHARS: Final = 8
_LONG_PATHS: Final = "has too many values under long keys; shorten the keys, or split it"
_NULL: Final = "tag:yaml.org,2002:null"
_INT64: Final = 2**63
_INT64_DIGITS: Final = 20
_BEYOND_64_BITS: Final = "exceeds 64 bits; write a smaller number, or text in quotes"
# The parser in C, if the wheel has it, parses a mebibyte in well under a second.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)  # not frozen: that is three times slower, and there may be 100,000
class _Steps:
    """The steps to a value. Only a problem writes them out as a path."""

    outer: "_Steps | None"  # to its container; None: the document
    step: str | int
    length: int  # characters of the path, about
    depth: int

    @classmethod
    def after(cls, outer: "_Steps | None", step: str | int) -> "_Steps":
        if outer is None:
            return cls(None, step, _length(step), 1)
        return cls(outer, step, outer.length + _length(step), outer.depth + 1)


@dataclass(slots=True)
class _Budget:
    """Characters left of `MAX_PATHS`."""

    left: int


class _StrictLoader(_Base):  # type: ignore[misc]  # the base is chosen at run time
    """Reads scalars as YAML 1.2 does: `on`, `010`, `1:30` and dates stay text."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - the signature of the base
        """Refuses duplicate keys."""
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _at_line(key_node, f"key {key!r} must be text; write it in quotes")
            if key in mapping:
                raise _at_line(key_node, f"duplicate key {key!r}; remove one")
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _StrictLoader.construct_mapping)
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def read_documents(text: str) -> list[object]:
    """Parses all documents of a YAML stream, or one JSON document. Empty documents are left out.

    Raises:
        ManifestError: the text is too large, too deep or not YAML, or has a value that JSON does not have.
    """
    _check_size(text)
    if text.lstrip().startswith(("{", "[")):
        try:
            return [_load_json(text)]
        except json.JSONDecodeError:
            # It may be YAML in flow style. Otherwise the YAML parser reports the problem with its line.
            pass
    try:
        _check_events(text)
        documents = [document for document in yaml.load_all(text, Loader=_StrictLoader) if document is not None]
    except ManifestError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ManifestError([FieldProblem("", f"{where}{error.problem or error}; correct the YAML")]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ManifestError([FieldProblem("", f"is not valid YAML: {error}; correct it")]) from error
    for document in documents:
        _check_tree(document)
    return documents


def document_nodes(text: str) -> Iterator[tuple[int, Any]]:
    """The trees of YAML nodes of the documents that `read_documents` returns, with their numbers in the text, from 1.

    Raises:
        yaml.YAMLError: the text is not YAML, such as JSON with tabs.
    """
    for number, node in enumerate(yaml.compose_all(text, Loader=_StrictLoader), 1):
        if node.tag != _NULL:
            yield number, node


def read_json(text: str | bytes) -> object:
    """Parses one JSON value; refuses duplicate keys.

    Raises:
        ManifestError: like `read_documents`.
    """
    _check_size(text)
    try:
        return _load_json(text)
    except UnicodeDecodeError as error:
        raise ManifestError([FieldProblem("", "is not UTF-8; send JSON in UTF-8")]) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ManifestError([FieldProblem("", f"{where}: {error.msg}; correct the JSON")]) from error


def _load_json(text: str | bytes) -> object:
    try:
        value = json.loads(text, object_pairs_hook=_object_of_distinct_keys, parse_int=_bounded_int)
    except RecursionError:
        raise _too_deep() from None
    _check_tree(value)
    return value


def _bounded_int(digits: str) -> int:
    if len(digits) > _INT64_DIGITS:  # Python's own message is for programmers
        raise ManifestError([FieldProblem("", f"{digits[:20]}... {_BEYOND_64_BITS}")])
    return int(digits)


def _check_size(text: str | bytes) -> None:
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise ManifestError([FieldProblem("", f"is {size} bytes; the limit is {MAX_TEXT_BYTES}: split it")])


def _check_events(text: str) -> None:
    """Refuses aliases, tags and deep nesting before any value is built."""
    depth = 0
    for event in yaml.parse(text, Loader=_Base):
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _at_line(event, f"tag {tag} is not supported; write the plain value")
        if isinstance(event, yaml.AliasEvent):
            raise _at_line(event, f"alias *{event.anchor} is not supported; write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _at_line(node: Any, message: str) -> ManifestError:
    return ManifestError([FieldProblem("", f"line {node.start_mark.line + 1}: {message}")])


def _too_deep() -> ManifestError:
    return ManifestError([FieldProblem("", f"is nested deeper than {MAX_DEPTH} levels; flatten it")])


def _object_of_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ManifestError([FieldProblem("", f"duplicate key {key!r} in an object; remove one")])
        mapping[key] = value
    return mapping


def _check_tree(root: object) -> None:
    """Refuses values that cannot be stored as JSON, with their path; and too long paths in total."""
    if problem := _scalar_problem(root):
        raise ManifestError([FieldProblem("", problem)])
    _check_inside(root, None, _Budget(MAX_PATHS))


def _check_inside(value: object, steps: _Steps | None, budget: _Budget) -> None:
    if steps is not None and steps.depth == MAX_DEPTH:
        raise _too_deep()
    children: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for step, inner in children:
        if isinstance(step, str) and (problem := _key_problem(step)):
            raise ManifestError([FieldProblem(_path(steps), f"a key {problem}")])
        if problem := _scalar_problem(inner):
            raise ManifestError([FieldProblem(_path(_Steps.after(steps, step)), problem)])
        budget.left -= (steps.length if steps else 0) + _length(step)
        if budget.left < 0:
            raise ManifestError([FieldProblem("", _LONG_PATHS)])
        if inner and isinstance(inner, dict | list):
            _check_inside(inner, _Steps.after(steps, step), budget)


def _path(steps: _Steps | None) -> str:
    written: list[str | int] = []
    while steps is not None:
        written.append(steps.step)
        steps = steps.outer
    return reduce(join_path, reversed(written), "")


def _length(step: str | int) -> int:
    return _INDEX_CHARS if isinstance(step, int) else len(step) + 1


def _key_problem(key: str) -> str | None:
    if len(key) > MAX_KEY:
        return f"has {len(key)} characters; write at most {MAX_KEY}"
    return _scalar_problem(key)


def _scalar_problem(value: object) -> str | None:
    problem = None
    match value:
        case str() if "\x00" in value:
            problem = "contains a NUL character; remove it"
        case str() if any("\ud800" <= char <= "\udfff" for char in value):
            problem = "contains half of a surrogate pair; remove it"
        case str() | bool() | None | dict() | list():
            pass
        case int() if not -_INT64 <= value < _INT64:
            problem = _BEYOND_64_BITS
        case float() if not math.isfinite(value):
            problem = "must be a finite number"
        case int() | float():
            pass
        case _:
            problem = f"is a {type(value).__name__}, which JSON does not have; write text, a number or a list"
    return problem
