"""Types of single fields that several schemas share, and the base of manifests and of bodies of requests.

Users write `20GiB` and `5m`; values are MiB and seconds.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from schemas.units import parse_duration_s, parse_size_mib

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
M = TypeVar("M", bound=BaseModel)


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("contains a NUL character; remove it")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(
            "must have printable characters alone: no line breaks, tabs or control characters; remove them"
        )
    return text


def _scalar_text(value: object) -> object:
    """Numbers and booleans of YAML as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def no_flag(value: object) -> object:
    """Refuses `true` and `false`, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, got {str(value).lower()}")
    return value


Text = Annotated[str, AfterValidator(_no_nul), Field(max_length=4096)]
Line = Annotated[Text, AfterValidator(_printable)]
ScalarText = Annotated[Text, BeforeValidator(_scalar_text)]
Name = Annotated[str, Field(pattern=NAME_PATTERN, description="a DNS label: lower case letters, digits, '-'")]
Whole = Annotated[int, BeforeValidator(no_flag)]


def _size_or_word(*words: str) -> Any:
    def parse(value: object) -> object:
        if value in words:
            return value
        try:
            return parse_size_mib(value)
        except ValueError as error:
            raise ValueError(f"{error}, or one of: {', '.join(words)}") from None

    return BeforeValidator(parse)


def _write_size(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value}MiB"


def _write_seconds(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _size_schema(description: str) -> WithJsonSchema:
    """Sizes are text in manifests, though their values are integers."""
    return WithJsonSchema({"type": "string", "description": description})


_as_size = PlainSerializer(_write_size, return_type=str)
Seconds = Annotated[
    float,
    BeforeValidator(parse_duration_s),
    PlainSerializer(_write_seconds),
    WithJsonSchema({"type": ["number", "string"], "description": "seconds, or a text such as 30s, 5m, 1h30m"}),
]
SizeMib = Annotated[int, BeforeValidator(parse_size_mib), _as_size, _size_schema("such as 20GiB")]
SizeMibOrAuto = Annotated[
    int | Literal["auto"], _size_or_word("auto"), _as_size, _size_schema("such as 20GiB, or auto")
]
SizeMibOrNone = Annotated[
    int | Literal["none"], _size_or_word("none"), _as_size, _size_schema("such as 20GiB, or none")
]
SizeMibOrAutoOrAll = Annotated[
    int | Literal["auto", "all"],
    _size_or_word("auto", "all"),
    _as_size,
    _size_schema("such as 20GiB, or auto, or all (of the GPU)"),
]


class Strict(BaseModel):
    """Refuses unknown keys. For manifests and bodies of requests: a misspelt key must not be ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def part(self, base: type[M]) -> M:
        """The fields of a base class."""
        return base.model_construct(**{name: getattr(self, name) for name in base.model_fields})
