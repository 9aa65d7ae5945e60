"""What the API is asked for and what it answers: paths, raw JSON objects, and those objects as their types. No I/O."""

from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from cli.errors import CliError
from schemas.base import View
from schemas.version import __version__

API: Final = "/api/v1"

Json = dict[str, Any]
V = TypeVar("V", bound=View)


def path_of(*parts: str) -> str:
    """An API path of its parts, each quoted."""
    return API + "".join("/" + quote(part, safe="") for part in parts)


def parse(model: type[V], raw: Json) -> V:
    """An object of the API as its type.

    Raises:
        CliError: it is none: client and server do not fit together.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CliError(
            f"the server's {model.__name__} is not understood ({where}: {first['msg']}); "
            f"use a gpuward of the server's version (this one is {__version__})"
        ) from error
