"""The base of the API's answers, and their JSON.

Clients import these types without pydantic, which is slow to import. A manifest in a view is a model of pydantic on the
server; `Manifest` represents it here.
"""

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from typing import Literal

    from pydantic import BaseModel
else:

    class Literal:
        """Text that is one of these words, or another one: the server may be newer than its client."""

        def __class_getitem__(cls, words: Any) -> Any:
            """The type, described by its words."""
            known = [words] if isinstance(words, str) else list(words)
            return Annotated[str, msgspec.Meta(extra_json_schema={"enum": known})]


__all__ = ["Literal", "Manifest", "Moment", "View", "from_json", "from_plain", "read_model", "to_json", "to_plain"]

T = TypeVar("T")
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class View(msgspec.Struct, frozen=True):
    """Ignores unknown keys, so that an older client can read a newer server."""


class _MadeElsewhere(type):
    """Every value but JSON counts as one that a hook has made."""

    def __instancecheck__(cls, value: object) -> bool:
        return not isinstance(value, dict)


class Manifest(metaclass=_MadeElsewhere):
    """A model of pydantic by its module and its name."""

    module: ClassVar[str]

    @classmethod
    def model(cls) -> "type[BaseModel]":
        model: type[BaseModel] = getattr(import_module(cls.module), cls.__name__)
        return model


def read_model(kind: Any, value: Any) -> Any:
    """A manifest in a view as its model."""
    return kind.model().model_validate(value)


def from_plain(kind: type[T], value: Any, read: Callable[[Any, Any], Any] = read_model) -> T:
    """A view of parsed JSON, of a row, or of other views. Missing keys get their defaults.

    Raises:
        msgspec.ValidationError: it does not match; the message ends with the path of the field.
    """
    return msgspec.convert(value, kind, dec_hook=read)


def from_json(kind: type[T], body: bytes) -> T:
    """A view of JSON.

    Raises:
        msgspec.ValidationError: it does not match.
        msgspec.DecodeError: it is not JSON.
    """
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=read_model)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def to_plain(value: Any) -> Any:
    """A view as parsed JSON."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """A model of a manifest, or a number of numpy."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value.item()


def _raw(value: Any) -> Any:
    return msgspec.Raw(value.model_dump_json().encode()) if hasattr(value, "model_dump_json") else value.item()


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_raw)


def to_json(value: Any) -> bytes:
    """A view, or what contains views, as JSON."""
    return _ENCODER.encode(value)
