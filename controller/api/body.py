"""Bodies: requests' are bounded in size and validated field by field; answers are JSON of a model."""

import io
from collections.abc import Mapping
from itertools import islice
from typing import Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from controller.api.context import BODY
from controller.api.errors import ApiError
from schemas.api.view import View, to_json
from schemas.manifest.problems import (
    MOST_PROBLEMS,
    FieldProblem,
    ManifestError,
    from_validation,
    most_specific,
    unknown_keys,
)
from schemas.manifest.strict_yaml import read_json

MAX_BODY_BYTES: Final = 2**20
M = TypeVar("M", bound=BaseModel)
_NOT_AN_OBJECT: Final = "must be one JSON object"


async def read_body(request: web.Request, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body. Reading stops at the limit.

    Raises:
        ApiError: 413 for a larger body, 415 for a compressed one, 400 for one that breaks off.
        BodiesFullError: too many bytes of bodies are in flight.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"Content-Encoding: {encoding} is not supported here; send the body uncompressed"
        raise ApiError(415, "unsupported_encoding", message)
    declared = request.content_length
    if declared is not None and declared > limit_bytes:
        raise _too_large(limit_bytes)
    hold = request[BODY]
    hold.take_up_to(declared or 0)  # refused before it is sent, not in the middle
    body = io.BytesIO()  # its value is handed over without a copy
    try:
        async for chunk in request.content.iter_any():
            size = body.tell() + len(chunk)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            hold.take_up_to(size)
            body.write(chunk)
    except web.RequestPayloadError as error:
        raise ApiError(400, "invalid", f"body: incomplete or badly encoded: {error}") from error
    return body.getvalue()


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, "too_large", f"body: larger than {limit_bytes} bytes; split it or make it smaller")


async def read_json_body(request: web.Request) -> object:
    """The body as one JSON value.

    Raises:
        ManifestError: the body is not valid JSON.
    """
    return read_json(await read_body(request))


async def read_model(
    request: web.Request, model: type[M], *, optional: bool = False, limit_bytes: int = MAX_BODY_BYTES
) -> M:
    """The body as a model.

    Args:
        request: the request.
        model: the model to validate against.
        optional: an empty body gives the model's defaults.
        limit_bytes: of the body.

    Raises:
        ManifestError: names every invalid field.
    """
    return parse_model(await read_body(request, limit_bytes), model, optional=optional)


def parse_model(body: bytes, model: type[M], *, optional: bool = False) -> M:
    """Like `read_model`, from a body that is read already.

    Raises:
        ManifestError: names every invalid field.
    """
    value = {} if optional and not body.strip() else read_json(body)
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem("", _NOT_AN_OBJECT)])
    problems = list(islice(unknown_keys(model, value), MOST_PROBLEMS + 1))
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        problems.extend(from_validation(error, value))
        raise ManifestError(most_specific(problems)) from error
    if problems:
        raise ManifestError(most_specific(problems))
    return parsed


def json_response(view: View, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response with the view as JSON."""
    return web.Response(
        status=status,
        body=to_json(view),
        content_type="application/json",
        headers=headers,
    )
