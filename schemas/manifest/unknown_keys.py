"""Refuses the keys of a manifest that its schema does not know, at any depth."""

from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from schemas.manifest.problems import FieldProblem, join_path, nearest


def unknown_keys(model: type[BaseModel], data: object, base: str = "") -> Iterator[FieldProblem]:
    """Finds the keys that `model` does not have, at any depth. Each comes with the most similar known key."""
    if not isinstance(data, dict):
        return
    fields = model.model_fields
    for key, value in data.items():
        path = join_path(base, str(key))
        if key not in fields:
            yield FieldProblem(path, f"unknown key; {nearest(str(key), fields)}")
            continue
        yield from _unknown_within(fields[key].annotation, value, path)


def _unknown_within(annotation: Any, value: object, path: str) -> Iterator[FieldProblem]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from unknown_keys(annotation, value, path)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _unknown_within(arguments[0], value, path)
    elif not _holds_model(annotation):
        return  # many values may be there, and each has a path
    elif origin is dict and isinstance(value, dict):
        for key, inner in value.items():
            yield from _unknown_within(arguments[1], inner, join_path(path, str(key)))
    elif origin in (list, tuple) and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unknown_within(arguments[0], inner, join_path(path, index))
    elif origin is Union or type(annotation).__name__ == "UnionType":
        for choice in arguments:
            yield from _unknown_within(choice, value, path)


def _holds_model(annotation: Any) -> bool:
    """Whether any value of this type has keys that a schema knows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(_holds_model(one) for one in get_args(annotation))
