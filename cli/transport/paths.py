"""Paths of the API, and its JSON objects as typed views. Pure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from cli.errors import CliError, UsageError
from schemas.version import __version__

if TYPE_CHECKING:
    from schemas.api.view import View

API: Final = "/api/v1"

Json = dict[str, Any]
V = TypeVar("V", bound="View")


def checked_name(name: str) -> str:
    """Raises `UsageError` for a name that is empty, changes the meaning of a path, or is not printable."""
    if not name or name in {".", ".."} or not name.isprintable():
        raise UsageError(f"{name!r}: not a valid name; names have letters, digits, `-` and `.`")
    return name


def path_of(*parts: str) -> str:
    """The API path of these parts, each quoted. Raises `UsageError` for a part that is not a valid name."""
    return API + "".join("/" + quote(checked_name(part), safe="") for part in parts)


def parse(model: type[V], raw: Any, read: Callable[[Any, Any], Any] | None = None) -> V:
    """The typed view of a JSON object of the API. `read` makes the models of manifests in it; None: `read_model`.

    Unknown keys are ignored, and missing keys get their defaults, since the server may be newer or older.

    Raises:
        CliError: the object does not match the view.
    """
    import msgspec  # noqa: PLC0415 - completion needs paths alone, and is quick

    from schemas.api.view import from_plain, read_model  # noqa: PLC0415 - as above

    try:
        return from_plain(model, raw, read=read or read_model)
    except msgspec.ValidationError as error:
        raise CliError(
            f"cannot read the {model.__name__} of the server ({error}); "
            f"use the gpuward version of the server (this is {__version__})"
        ) from None
