"""Reading requests and writing answers: bodies under a bound, parameters checked, models as JSON."""

import re
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from controller.api.errors import ApiError, invalid
from controller.api.route import MAX_BODY_BYTES
from controller.store.views.paging import MAX_LIMIT
from schemas.fields import NAME_PATTERN
from schemas.manifest.problems import FieldProblem, ManifestError, from_validation, most_specific
from schemas.manifest.strict_yaml import read_json
from schemas.manifest.unknown_keys import unknown_keys

DEFAULT_LIMIT: Final = 100
OUTCOME_HEADER: Final = "X-Gpuward-Outcome"  # of an apply: created, unchanged, updated or replaced
_IF_MATCH: Final = re.compile(r'^(?:W/)?"?(\d{1,18})"?$')
M = TypeVar("M", bound=BaseModel)


async def read_body(request: web.Request, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body, read no further than its bound.

    Raises:
        ApiError: 413 beyond it.
    """
    declared = request.content_length
    if declared is not None and declared > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            chunks.append(chunk)
    except web.RequestPayloadError as error:
        raise ApiError(400, "invalid", f"the body cannot be read: {error}") from error
    return b"".join(chunks)


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, "too_large", f"the body is larger than {limit_bytes} bytes; split it or make it smaller")


async def read_json_body(request: web.Request) -> object:
    """The body as one JSON value.

    Raises:
        ManifestError: if it is none.
    """
    return read_json(await read_body(request))


async def read_model(request: web.Request, model: type[M], *, optional: bool = False) -> M:
    """The body as a model; every field that is wrong is named.

    Args:
        request: whose body.
        model: what it should be.
        optional: an empty body stands for the model's defaults.

    Raises:
        ManifestError: if it is something else.
    """
    body = await read_body(request)
    value = {} if optional and not body.strip() else read_json(body)
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem("", "must be one JSON object")])
    problems = list(unknown_keys(model, value))
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        problems.extend(from_validation(error, value))
        raise ManifestError(most_specific(problems)) from error
    if problems:
        raise ManifestError(most_specific(problems))
    return parsed


def known_parameters(request: web.Request, *names: str) -> Mapping[str, str]:
    """The query; a parameter that the route does not know is refused, since ignoring it would answer another question.

    Raises:
        ApiError: 400.
    """
    unknown = sorted(set(request.query) - set(names))
    if unknown:
        advice = f"known: {', '.join(names)}" if names else "this path takes none"
        raise invalid([FieldProblem(name, f"unknown query parameter; {advice}") for name in unknown])
    return {name: request.query[name] for name in names if name in request.query}


def whole_number(parameters: Mapping[str, str], name: str, *, low: int, high: int) -> int | None:
    """A numeric parameter; None where it is left out.

    Raises:
        ApiError: 400.
    """
    text = parameters.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):  # noqa: PLR2004 - digits of 64 bits
        raise invalid([FieldProblem(name, f"is {text[:40]!r}; write a whole number from {low} to {high}")])
    return int(text)


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """A yes-or-no parameter; False where it is left out.

    Raises:
        ApiError: 400.
    """
    text = parameters.get(name, "false").lower()
    if text not in ("true", "1", "false", "0"):
        raise invalid([FieldProblem(name, f"is {text[:40]!r}; write true or false")])
    return text in ("true", "1")


def page_limit(parameters: Mapping[str, str]) -> int:
    """The `limit` parameter of a list."""
    return whole_number(parameters, "limit", low=1, high=MAX_LIMIT) or DEFAULT_LIMIT


def name_to_apply(request: web.Request) -> str:
    """The name in the path of what is to be applied.

    Raises:
        ApiError: 400 where no object can be called so.
    """
    name = request.match_info["name"]
    if not re.fullmatch(NAME_PATTERN, name):
        raise invalid(
            [FieldProblem("name", "is not a valid name; write at most 63 lower case letters, digits and '-'")]
        )
    return name


def expected_generation(request: web.Request) -> int | None:
    """The generation that `If-Match` expects the object to have; None for any.

    Raises:
        ApiError: 400.
    """
    text = request.headers.get("If-Match")
    if text is None or text.strip() == "*":
        return None
    match = _IF_MATCH.match(text.strip())
    if match is None:
        raise ApiError(400, "invalid", "If-Match: is no generation; send the number that was read, or leave it out")
    return int(match[1])


class Tagged(Protocol):
    """An object with a generation."""

    @property
    def generation(self) -> int:
        """Rises with every changed spec."""


def tagged(view: Tagged) -> dict[str, str]:
    """The header that tells the generation."""
    return {"ETag": f'"{view.generation}"'}


def answer(model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A model as JSON."""
    return web.Response(
        status=status,
        body=model.model_dump_json().encode(),
        content_type="application/json",
        headers=headers,
    )
