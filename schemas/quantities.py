"""Sizes and durations as fields of schemas. Users write `20GiB` and `5m`; inside they are MiB and seconds."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from schemas.units import parse_duration_s, parse_size_mib


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
    """Users write sizes as text, though they are whole numbers inside."""
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
