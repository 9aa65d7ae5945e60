"""Paths of the API, and its JSON objects as typed views. No I/O."""

from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from cli.errors import CliError, UsageError
from schemas.version import __version__

if TYPE_CHECKING:  # slow to import
    from schemas.base import View

API: Final = "/api/v1"

Json = dict[str, Any]
V = TypeVar("V", bound="View | msgspec.Struct")


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


def parse(model: type[V], raw: Any) -> V:
    """The typed view of a JSON object of the API: a struct, or a model of pydantic.

    Unknown keys are ignored, missing ones get their defaults: the server may be newer or older.

    Raises:
        CliError: the object does not match the view.
    """
    if issubclass(model, msgspec.Struct):
        try:
            return msgspec.convert(raw, model)
        except msgspec.ValidationError as error:
            why = str(error)
    else:
        from pydantic import ValidationError  # noqa: PLC0415 - slow to import, and the model has it already

        try:
            return model.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    raise CliError(
        f"cannot read the {model.__name__} of the server ({why}); "
        f"use the gpuward version of the server (this is {__version__})"
    )
