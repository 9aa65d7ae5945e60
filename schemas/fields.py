"""Types of single fields that several schemas share: names, text and whole numbers."""

from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


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
    """Turns numbers and booleans of YAML into the text that was written."""
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
