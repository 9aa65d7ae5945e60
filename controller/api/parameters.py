"""Reads a request's query parameters, the name in its path, and its preconditions."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from aiohttp import web
from multidict import MultiMapping

from controller.api.context import CONTEXT
from controller.api.errors import ApiError, invalid
from controller.api.route import Query
from controller.store.core.database import Reader
from controller.store.core.refusals import GenerationConflictError
from controller.store.views.paging import MAX_LIMIT
from schemas.api.view import View
from schemas.fields import NAME_PATTERN
from schemas.manifest.problems import FieldProblem, nearest
from schemas.units import parse_duration_s
from schemas.worker_labels import is_trusted

DEFAULT_LIMIT: Final = 100
_IF_MATCH: Final = re.compile(r'^(?:W/)?"?(\d{1,18})"?$')
_TIME: Final = re.compile(r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d")
_MAX_DIGITS: Final = 19  # of a 64-bit number
_MOST_UNKNOWN: Final = 8
_FIRST: Final = 1
ReadOne: TypeAlias = Callable[[Reader, str], Awaitable[View]]


def parameters_of(request: web.Request) -> Mapping[str, str]:
    """The first value of each query parameter. A middleware has refused any that the route does not state."""
    return {name: request.query[name] for name in request.query}


def refuse_unknown(parameters: Iterable[str], *names: str) -> None:
    """Raises `ApiError`: 400, a parameter has another name than these."""
    if unknown := sorted(set(parameters) - set(names))[:_MOST_UNKNOWN]:
        raise invalid([FieldProblem(name[:80], f"unknown query parameter; {_advice(name, names)}") for name in unknown])


def refuse_repeated(parameters: MultiMapping[str], known: Sequence[Query]) -> None:
    """Raises `ApiError`: 400, a parameter that takes one value is given several times."""
    given = {query.name: len(parameters.getall(query.name, ())) for query in known}
    if repeated := [query.name for query in known if given[query.name] > 1 and not query.many]:
        raise invalid([FieldProblem(name, f"is given {given[name]} times; give it once") for name in repeated])


def _advice(name: str, known: Sequence[str]) -> str:
    return nearest(name[:80], known) if known else "this path takes none"


def integer(parameters: Mapping[str, str], name: str, *, low: int, high: int) -> int | None:
    """The value of an integer parameter; None if it is absent.

    Raises:
        ApiError: 400.
    """
    text = parameters.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and low <= int(text) <= high):
        raise invalid([FieldProblem(name, f"must be a whole number from {low} to {high}, got {text[:40]!r}")])
    return int(text)


def duration_s(parameters: Mapping[str, str], name: str, *, low: float, high: float) -> float | None:
    """The seconds of a duration parameter such as `10m`; None if it is absent. The bounds are in seconds.

    Raises:
        ApiError: 400.
    """
    text = parameters.get(name)
    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise invalid([FieldProblem(name, str(error))]) from error
    if not low <= seconds <= high:
        bounds = f"{low:g}s to {high / 86_400:g}d"
        raise invalid([FieldProblem(name, f"must be a duration from {bounds}, got {text[:40]!r}")])
    return seconds


def time_or_age(parameters: Mapping[str, str], name: str) -> datetime | timedelta | None:
    """A time as RFC 3339, or an age such as `10m`; None if it is absent.

    Raises:
        ApiError: 400.
    """
    text = parameters.get(name)
    if text is None:
        return None
    try:
        return timedelta(seconds=parse_duration_s(text))
    except ValueError:
        pass
    try:
        # A `+` that was not escaped arrives as a space. A date without a time is refused.
        time = datetime.fromisoformat(text.replace(" ", "+") if _TIME.match(text) else "")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        fix = "must be a moment such as 2026-11-23T14:05:00Z, or a duration before now such as 10m"
        raise invalid([FieldProblem(name, f"{fix}, got {text[:40]!r}")]) from error


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """The value of a boolean parameter; False if it is absent.

    Raises:
        ApiError: 400.
    """
    text = parameters.get(name, "false").lower()
    if text not in ("true", "1", "false", "0"):
        raise invalid([FieldProblem(name, f"must be true or false, got {text[:40]!r}")])
    return text in ("true", "1")


def page_limit(parameters: Mapping[str, str]) -> int:
    return integer(parameters, "limit", low=1, high=MAX_LIMIT) or DEFAULT_LIMIT


def new_name(request: web.Request) -> str:
    """The name in the path, of an object that the request may create.

    Raises:
        ApiError: 400 for a name that is not a DNS label.
    """
    name = request.match_info["name"]
    if not re.fullmatch(NAME_PATTERN, name):
        fix = "must be a DNS label: lower case letters, digits and '-', at most 63 characters"
        raise invalid([FieldProblem("name", fix)])
    return name


def check_trusted(labels: Iterable[str], trusted: Sequence[str]) -> None:
    """Raises `ApiError`: 400, the worker's agent sets one of these labels."""
    for key in labels:
        if not is_trusted(key, trusted):
            fix = f"its host's agent sets this label (--label); only {', '.join(trusted) or 'none'} can be stated"
            raise invalid([FieldProblem(f"labels.{key}", f"{fix}: GPUWARD_TRUSTED_LABELS on the controllers")])


def expected_state(request: web.Request) -> int | None:
    """The precondition of an apply: the generation in `If-Match`; 0 for no object (`If-None-Match: *`); None for any.

    Raises:
        ApiError: 400.
    """
    text = request.headers.get("If-None-Match")
    if text is None:
        return expected_generation(request)
    if text.strip() != "*" or "If-Match" in request.headers:
        fix = "send If-None-Match: * for an object that must not exist, or If-Match: GENERATION"
        raise ApiError(400, "invalid", f"If-None-Match: cannot be used so; {fix}")
    return 0


def expected_generation(request: web.Request) -> int | None:
    """The generation in `If-Match`; None for any.

    Raises:
        ApiError: 400.
    """
    text = request.headers.get("If-Match")
    if text is None or text.strip() == "*":
        return None
    match = _IF_MATCH.fullmatch(text.strip())
    if match is None:
        raise ApiError(400, "invalid", "If-Match: not a generation; send the number from the ETag, or leave it out")
    return int(match[1])


async def expect_first_generation(request: web.Request, kind: str, name: str, read: ReadOne) -> None:
    """Checks `If-Match` for an object without a manifest, which is always at generation 1.

    Raises:
        ApiError: 400, the header has no generation.
        NotFoundError: `read` finds no such object.
        GenerationConflictError: another generation is expected.
    """
    wanted = expected_generation(request)
    if wanted not in (None, _FIRST):
        async with request.app[CONTEXT].database.snapshot() as connection:
            await read(connection, name)
        raise GenerationConflictError(name, wanted=wanted, present=_FIRST, kind=kind)
