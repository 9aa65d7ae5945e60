"""The shapes of the API's views, for the command line: it reads them without pydantic, which is slow to import.

A shape has an entry for each field: its type, and its default where it has one. Types are `str`, `int`, `float`,
`bool`, `moment`, `any` and `@View`. Before them stand `?`: may be null, `[`: a list of, `(`: a tuple of, `{`: an
object of.
"""

import json
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, PlainSerializer
from pydantic_core import to_jsonable_python

from schemas.api.access import KeyView, SecretView, TokenView
from schemas.api.deployments import DeploymentView
from schemas.api.events import EventView
from schemas.api.gateways import GatewayView
from schemas.api.gpus import GpuView
from schemas.api.history import UtilizationView
from schemas.api.instances import InstanceView
from schemas.api.model_cache import CachedModelView
from schemas.api.pending import PendingView
from schemas.api.policies import PolicyView
from schemas.api.workers import WorkerView

VIEWS: Final[tuple[type[BaseModel], ...]] = (
    CachedModelView, DeploymentView, EventView, GatewayView, GpuView, InstanceView, KeyView, PendingView, PolicyView,
    SecretView, TokenView, UtilizationView, WorkerView,
)  # fmt: skip
_SCALARS: Final[dict[Any, str]] = {str: "str", int: "int", float: "float", bool: "bool", datetime: "moment"}
_CONTAINERS: Final[dict[Any, tuple[str, int]]] = {list: ("[", 0), tuple: ("(", 0), dict: ("{", 1)}  # of which argument
_MANIFESTS: Final = "schemas.manifest."  # read one level deep: tables show little of them


def page() -> str:
    """The file: one line for each view."""
    shapes: dict[str, dict[str, list[Any]]] = {}
    for view in VIEWS:
        _add(view, shapes)
    lines = [f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in sorted(shapes.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _add(view: type[Any], shapes: dict[str, dict[str, list[Any]]]) -> None:
    if view.__name__ in shapes:
        return
    shape: dict[str, list[Any]] = {}
    shapes[view.__name__] = shape
    within = not view.__module__.startswith(_MANIFESTS)
    if issubclass(view, msgspec.Struct):
        for one in msgspec.structs.fields(view):
            parts: list[type] = []
            default = (
                []
                if one.required
                else [to_jsonable_python(one.default_factory() if one.default is msgspec.NODEFAULT else one.default)]
            )
            shape[one.name] = [_type(one.type, parts), *default]
            for part in parts:
                _add(part, shapes)
        return
    for name, field in view.model_fields.items():
        written = any(isinstance(mark, PlainSerializer) for mark in field.metadata)
        parts = []
        kind = "any" if written else _type(field.annotation, parts if within else None)
        default = [] if field.is_required() else [to_jsonable_python(field.get_default(call_default_factory=True))]
        shape[name] = [kind, *default]
        for part in parts:
            _add(part, shapes)


def _type(annotation: Any, parts: list[type] | None) -> str:
    """The type of an annotation; models that it names are added to `parts`. Without them they are `any`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        written = any(isinstance(mark, PlainSerializer) for mark in arguments[1:])
        return "any" if written else _type(arguments[0], parts)
    if origin in (Union, UnionType):
        others = [one for one in arguments if one is not NoneType]
        null = "?" if len(others) < len(arguments) else ""
        return "any" if len(others) != 1 else null + _type(others[0], parts)
    if origin in _CONTAINERS:
        mark, of = _CONTAINERS[origin]
        return mark + _type(arguments[of], parts)
    if origin is Literal:
        return "str" if all(isinstance(value, str) for value in arguments) else "any"
    if parts is not None and isinstance(annotation, type) and issubclass(annotation, BaseModel | msgspec.Struct):
        parts.append(annotation)
        return f"@{annotation.__name__}"
    return _SCALARS.get(annotation, "any")
