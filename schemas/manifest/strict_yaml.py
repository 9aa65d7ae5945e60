"""Strict reading of YAML and JSON: bounded, no aliases, no key twice, nothing that JSON could not hold.

Knows no manifest; what it returns are plain dicts, lists and scalars.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from schemas.manifest.problems import FieldProblem, ManifestError, join_path

MAX_TEXT_BYTES: Final = 2**20
MAX_DEPTH: Final = 32
_INT64: Final = 2**63
_INT64_DIGITS: Final = 20
_BEYOND_64_BITS: Final = "is beyond 64 bits; write a smaller number or a text in quotes"
# The parser in C where the wheel has it: a mebibyte then takes well under a second.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Base):  # type: ignore[misc]  # the base is chosen at run time
    """Scalars as YAML 1.2 reads them: `on`, `010` and `1:30` stay what was written, and dates stay text."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - as the base has it
        """Builds a mapping and refuses a key that stands there twice."""
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(key_node, f"key {key!r} is no text; write it in quotes")
            if key in mapping:
                raise _problem(key_node, f"key {key!r} stands here twice; remove one")
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
    """Reads all documents of a YAML stream, or one of JSON; empty documents are left out.

    Raises:
        ManifestError: if it is too large, too deep, no YAML, or holds what JSON cannot.
    """
    _check_size(text)
    if text.lstrip().startswith(("{", "[")):
        try:
            return [_load_json(text)]
        except json.JSONDecodeError:
            # YAML's flow style looks alike; what is wrong with it as YAML is told below, with its line.
            pass
    try:
        _check_events(text)
        documents = [document for document in yaml.load_all(text, Loader=_StrictLoader) if document is not None]
    except ManifestError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ManifestError([FieldProblem("", f"{where}{error.problem or error}; mend the YAML")]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ManifestError([FieldProblem("", f"cannot be read as YAML: {error}")]) from error
    for document in documents:
        _check_tree(document)
    return documents


def read_json(text: str | bytes) -> object:
    """Reads one JSON value; a key that stands twice in an object is refused.

    Raises:
        ManifestError: as `read_documents`.
    """
    _check_size(text)
    try:
        return _load_json(text)
    except UnicodeDecodeError as error:
        raise ManifestError([FieldProblem("", "is not UTF-8; send JSON in UTF-8")]) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ManifestError([FieldProblem("", f"{where}: {error.msg}; mend the JSON")]) from error


def _load_json(text: str | bytes) -> object:
    try:
        value = json.loads(text, object_pairs_hook=_object_of_distinct_keys, parse_int=_bounded_int)
    except RecursionError:
        raise _too_deep() from None
    _check_tree(value)
    return value


def _bounded_int(digits: str) -> int:
    if len(digits) > _INT64_DIGITS:  # Python itself refuses thousands of digits, in words for programmers
        raise ManifestError([FieldProblem("", f"{digits[:20]}... {_BEYOND_64_BITS}")])
    return int(digits)


def _check_size(text: str | bytes) -> None:
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise ManifestError([FieldProblem("", f"is {size} bytes; the limit is {MAX_TEXT_BYTES}: split it")])


def _check_events(text: str) -> None:
    """Refuses aliases, tags and depth before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, Loader=_Base):
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _problem(event, f"tag {tag} is not supported; write the plain value")
        if isinstance(event, yaml.AliasEvent):
            raise _problem(event, f"alias *{event.anchor} is not supported; write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _problem(node: Any, message: str) -> ManifestError:
    return ManifestError([FieldProblem("", f"line {node.start_mark.line + 1}: {message}")])


def _too_deep() -> ManifestError:
    return ManifestError([FieldProblem("", f"is nested deeper than {MAX_DEPTH} levels; flatten it")])


def _object_of_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ManifestError([FieldProblem("", f"key {key!r} stands in an object twice; remove one")])
        found[key] = value
    return found


def _check_tree(root: object) -> None:
    """Refuses what could not be stored as JSON, naming where it stands."""
    left: list[tuple[object, str, int]] = [(root, "", 0)]
    while left:
        value, path, depth = left.pop()
        if depth > MAX_DEPTH:
            raise _too_deep()
        complaint = _scalar_complaint(value)
        if complaint:
            raise ManifestError([FieldProblem(path, complaint)])
        left.extend((inner, inner_path, depth + 1) for inner_path, inner in _children(value, path))


def _children(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            complaint = _scalar_complaint(key)
            if complaint:
                raise ManifestError([FieldProblem(path, f"a key {complaint}")])
            yield join_path(path, key), inner
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield join_path(path, index), inner


def _scalar_complaint(value: object) -> str | None:
    complaint = None
    match value:
        case str() if "\x00" in value:
            complaint = "holds a NUL character; remove it"
        case str() if any("\ud800" <= char <= "\udfff" for char in value):
            complaint = "holds half of a surrogate pair, which is no text; remove it"
        case str() | bool() | None | dict() | list():
            pass
        case int() if not -_INT64 <= value < _INT64:
            complaint = _BEYOND_64_BITS
        case float() if not math.isfinite(value):
            complaint = "is no finite number; write one"
        case int() | float():
            pass
        case _:
            complaint = f"is a {type(value).__name__}, which JSON cannot hold; write text, a number or a list"
    return complaint
