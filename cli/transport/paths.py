"""Paths of the API, and its JSON objects as typed views. No I/O."""

from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from cli.errors import CliError, UsageError
from schemas.version import __version__

if TYPE_CHECKING:  # slow to import
    from schemas.base import View

API: Final = "/api/v1"

Json = dict[str, Any]
V = TypeVar("V", bound="View")


def checked_name(name: str) -> str:
    """The name, if an object may have it.

    Raises:
        UsageError: it is empty, a path would end elsewhere with it, or it would not be printed as it is.
    """
    if not name or name in {".", ".."} or not name.isprintable():
        raise UsageError(f"{name!r}: not a valid name; names have letters, digits, `-` and `.`")
    return name


def path_of(*parts: str) -> str:
    """The API path made of these parts; each is quoted.

    Raises:
        UsageError: a part is not a valid name.
    """
    return API + "".join("/" + quote(checked_name(part), safe="") for part in parts)


def parse(model: type[V], raw: Json) -> V:
    """The typed view of a JSON object of the API.

    Raises:
        CliError: the object does not match the view, because client and server have different versions.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - slow to import, and the model has it already

    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CliError(
            f"cannot read the {model.__name__} of the server ({where}: {first['msg']}); "
            f"use the gpuward version of the server (this is {__version__})"
        ) from error
