"""The parameters of a request that routing, limits and usage need, whatever form its body has. Pure."""

import re
from typing import Any, Final, NamedTuple

_UTF8: Final = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*\"?([^\s\";]+)", re.IGNORECASE)
TRUE: Final = frozenset({"true", "1", "1.0", "t", "on", "y", "yes"})  # words that engines' parsers take for true


class BadRequestError(ValueError):
    """The request cannot be routed. `param`: the field at fault; empty: the body."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class AnswerSize(NamedTuple):
    """How long an answer may be.

    Attributes:
        choices: number of answers.
        most: tokens of each choice; None if not stated.
        limit: the same, by the largest number that any field states: engines read different fields.
    """

    choices: int = 1
    most: int | None = None
    limit: int | None = None


ANY_SIZE: Final = AnswerSize()


class Parameters(NamedTuple):
    """The parameters. `prompts`: number of prompts, each with answers of its own."""

    model: str
    stream: Any = None
    stream_options: Any = None
    answer: AnswerSize = ANY_SIZE
    prompts: int = 1

    @property
    def streams(self) -> bool:
        """Whether engines take the request for one of a stream. Their parsers take some words and numbers for true."""
        value = self.stream
        return value is True or (isinstance(value, str | int | float) and str(value).lower() in TRUE)


def check_charset(content_type: str) -> None:
    """Checks each charset that a `Content-Type` states.

    Raises:
        BadRequestError: it is not UTF-8 or a part of it.
    """
    for charset in _CHARSET.findall(content_type):
        if charset.lower() not in _UTF8:
            raise BadRequestError(f"Content-Type: charset must be utf-8, got {charset}")
