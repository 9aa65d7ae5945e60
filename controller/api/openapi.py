"""`GET /openapi.json`: generated from the route table and the models that validate."""

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from typing import Any, Final

import msgspec
import orjson
from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from controller.api.route import Access, Query, Route
from schemas.api.envelopes import ErrorView
from schemas.api.view import Manifest, View

_VARIABLE: Final = re.compile(r"\{(\w+)\}")
_JSON: Final = "application/json"
_REFERENCE: Final = "#/components/schemas/{name}"


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    bodies = {route.body for route in routes if route.body is not None}
    views: set[type[View]] = {ErrorView, *(route.answer for route in routes if route.answer is not None)}
    schemas, components = _schemas(bodies, views)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.canonical, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gpuward", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": {"description": "Error", "content": {_JSON: {"schema": schemas[ErrorView]}}}},
        },
    }


def _schemas(bodies: Iterable[type[BaseModel]], views: Iterable[type[View]]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, which refers to components, and the components by name."""
    models = set(bodies)

    def of_model(kind: type[Manifest]) -> dict[str, Any]:
        """Refers to a pydantic model in a view."""
        model = kind.model()
        models.add(model)
        return {"$ref": _REFERENCE.format(name=model.__name__)}

    ordered = sorted(views, key=str)
    views_schemas, components = msgspec.json.schema_components(ordered, schema_hook=of_model, ref_template=_REFERENCE)
    # Responses have no computed fields, so the schemas that validate describe them too.
    references, definitions = models_json_schema(
        [(model, "validation") for model in sorted(models, key=str)], ref_template=_REFERENCE.format(name="{model}")
    )
    schemas = dict(zip(ordered, views_schemas, strict=True)) | {
        model: references[model, "validation"] for model in models
    }
    return schemas, {**{name: _tidied(schema) for name, schema in components.items()}, **definitions["$defs"]}


def _tidied(schema: Any) -> Any:
    """Adds the type of enumerations to a schema of msgspec, and removes the indentation of descriptions."""
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {name: _tidied(value) for name, value in schema.items()}
    if all(isinstance(value, str) for value in tidied.get("enum", (None,))):
        tidied["type"] = "string"
    if isinstance(text := tidied.get("description"), str):
        tidied["description"] = cleandoc(text)
    return tidied


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
              for name in _VARIABLE.findall(route.canonical)),
            *(_query(query) for query in route.query),
        ],
        "responses": {
            str(route.status): _response(route, schemas),
            "default": {"$ref": "#/components/responses/Error"},
        },
        "security": [] if route.access is Access.OPEN else [{"key": []}],
    }  # fmt: skip
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas[route.body]}}}
    if route.access is not Access.OPEN:
        operation["description"] = f"Roles: {', '.join(sorted(route.access.value))}."
    return operation


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", route.canonical.removeprefix("/api/v1"))
    return "_".join([route.method.lower(), *words])


def _query(query: Query) -> dict[str, Any]:
    return {
        "name": query.name,
        "in": "query",
        "required": False,
        "description": query.description,
        "schema": {"type": "array", "items": {"type": query.kind}} if query.many else {"type": query.kind},
    }


def _response(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": route.summary}
    if route.answer is not None:
        response["content"] = {route.media: {"schema": schemas[route.answer]}}
    elif route.status != 204:  # noqa: PLR2004 - no content
        response["content"] = {route.media: {}}
    return response


def openapi_route(routes: Sequence[Route], version: str) -> Route:
    """The route that returns the document of all routes, including itself."""

    async def get(_request: web.Request) -> web.Response:
        return web.Response(body=document, content_type=_JSON)

    itself = Route("GET", "/openapi.json", get, Access.READ, "This OpenAPI document", "openapi", from_memory=True)
    document = orjson.dumps(describe([*routes, itself], version))
    return itself
