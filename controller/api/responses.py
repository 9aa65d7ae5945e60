"""Builds JSON responses from models."""

from collections.abc import Mapping

from aiohttp import web
from pydantic import BaseModel


def json_response(model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response with the model as JSON."""
    return web.Response(
        status=status,
        body=model.model_dump_json().encode(),
        content_type="application/json",
        headers=headers,
    )
