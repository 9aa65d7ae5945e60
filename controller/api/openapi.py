"""`GET /openapi.json`: generated from the route table and the models that validate."""

import re
from collections.abc import Sequence
from typing import Any, Final

import orjson
from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from controller.api.route import Access, Query, Route
from schemas.api.envelopes import ErrorView

_VARIABLE: Final = re.compile(r"\{(\w+)\}")
_JSON: Final = "application/json"


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    models: dict[type[BaseModel], None] = {ErrorView: None}
    for route in routes:
        models.update({model: None for model in (route.answer, route.body) if model is not None})
    # Responses have no computed fields, so the schemas that validate describe them too.
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas = {model: references[model, "validation"] for model in models}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.canonical, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gpuward", "version": version},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": {"description": "Error", "content": {_JSON: {"schema": schemas[ErrorView]}}}},
        },
    }


def _operation(route: Route, schemas: dict[type[BaseModel], Any]) -> dict[str, Any]:
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


def _response(route: Route, schemas: dict[type[BaseModel], Any]) -> dict[str, Any]:
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
