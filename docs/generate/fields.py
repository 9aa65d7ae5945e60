"""The fields of pydantic models as rows of a reference page: type, default, limits, description."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from schemas.fields import NAME_PATTERN, Seconds, SizeMib
from tables import code, duration, one_line, sentence, words

NONE: Final = ""
_SCALARS: Final = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "boolean",
    "null": "`null`",
    "array": "list",
    "object": "map",
}
_PATTERNS: Final = {
    NAME_PATTERN: "a DNS label: lower-case letters, digits and `-`, at most 63 characters",
    r"^/[^\s]*$": "begins with `/`, without blanks",
    r"^\d+\.\d+$": "two numbers with a dot between them",
    r"^https?://[^\s/]+(/.*)?$": "begins with `http://` or `https://`",
}
# pydantic writes the second name where a validator stands before the limit.
_LEAST: Final = ("minimum", "ge")
_MOST: Final = ("maximum", "le")
_LIMITS: Final = {
    "exclusiveMinimum": "above {}",
    "gt": "above {}",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
    "maxLength": "at most {} characters",
}
_TEXT_LENGTH: Final = ("maxLength", 4096)  # of every text, which the page says once
_SIZE: Final = TypeAdapter(SizeMib).json_schema()["description"]
_DURATION: Final = TypeAdapter(Seconds).json_schema()["description"]


def described(model: type[BaseModel]) -> Mapping[str, str]:
    """Each field's description: its own, else that of the docstring's `Attributes`; empty where there is none."""
    attributes = _attributes(model)
    return {
        name: sentence((field.description or attributes.get(name, "")).replace("None: ", "Absent: "))
        for name, field in model.model_fields.items()
    }


def _attributes(model: type[BaseModel]) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        _, _, text = (inspect.cleandoc(base.__doc__) if base.__doc__ else "").partition("Attributes:\n")
        for match in re.finditer(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
            found[match[1]] = match[2]
    return found


def default_of(field: FieldInfo, schema: Mapping[str, Any]) -> str:
    """A field's default as a manifest writes it; empty where there is none, or where it is a model."""
    if field.is_required():
        return "required"
    default = field.default
    if default is None or default is PydanticUndefined or isinstance(default, BaseModel):
        return NONE
    return code(_written(default, schema))


def _written(default: object, schema: Mapping[str, Any]) -> str:
    match default:
        case bool():
            text = str(default).lower()
        case tuple() | list() | dict() | frozenset() if not default:
            text = "[]" if schema.get("type") == "array" else "{}"
        case int() | float() if _is_duration(schema):
            text = duration(default)
        case int() if schema.get("type") == "string":
            text = _size(default)
        case float():
            text = f"{default:g}"
        case _:
            text = str(default)
    return text


def _is_duration(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("type"), list) and "string" in schema["type"]


def _size(mib: int) -> str:
    for unit, name in ((2**20, "TiB"), (2**10, "GiB")):
        if mib and mib % unit == 0:
            return f"{mib // unit}{name}"
    return f"{mib}MiB" if mib else "0MiB"


def type_of(schema: Mapping[str, Any], anchors: Mapping[str, str]) -> str:
    """A JSON schema's type in words; models are links."""
    match schema:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            text = f"[{name}](#{anchors[name]})"
        case {"const": value}:
            text = code(value)
        case {"enum": values}:
            text = words(values)
        case {"anyOf": options} | {"oneOf": options}:
            text = _either(dict.fromkeys(type_of(one, anchors) for one in options if one != {"type": "null"}))
        case {"type": [*_]}:  # read from text as well as from numbers
            how = schema.get("description", "")
            text = "duration" if how == _DURATION else f"duration, {one_line(how.partition(':')[0])}"
        case {"type": "array", "items": {**items}} if items:
            text = f"list of {type_of(items, anchors)}"
        case {"type": "object", "additionalProperties": {**values}}:
            text = f"map of text to {type_of(values, anchors)}"
        case {"type": "string", "description": str(how)} if how.startswith(_SIZE):
            text = f"size{one_line(how).removeprefix(_SIZE)}"
        case {"type": str(kind)}:
            text = _SCALARS[kind]
        case _:
            text = "any value"
    return text


def _either(options: Collection[str]) -> str:
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last


def limits_of(schema: Mapping[str, Any]) -> str:
    """A JSON schema's limits in words."""
    parts = list(dict.fromkeys(_limits(schema)))
    return sentence("; ".join(parts)) if parts else ""


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, text in _LIMITS.items():
        if key in schema and (key, schema[key]) != _TEXT_LENGTH:
            yield text.format(schema[key]).replace("least 1 entries", "least 1 entry")
    least = next((schema[key] for key in _LEAST if key in schema), None)
    most = next((schema[key] for key in _MOST if key in schema), None)
    if least is not None and most is not None:
        yield f"{least} to {most}"
    elif most is not None:
        yield f"at most {most}"
    elif least is not None:
        yield f"at least {least}"
    if "pattern" in schema:
        yield _PATTERNS[schema["pattern"]]
    for one in schema.get("anyOf", ()):
        yield from _limits(one)
