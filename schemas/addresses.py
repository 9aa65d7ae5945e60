"""Addresses as users write them: URLs of several controllers, separated by commas, and origins of pages."""

import re
from typing import Final

ANY_ORIGIN: Final = "*"
_ORIGIN: Final = re.compile(r"https?://[^\s/,?#*@]+")
MOST: Final = 16
_URL: Final = re.compile(r"https?://[^\s/,]+(/[^\s,]*)?")


def addresses_in(text: str) -> list[str]:
    """The URLs of a list, without a trailing slash; each once.

    Raises:
        ValueError: there is none, or too many, or one is not valid.
    """
    found = [one.strip().rstrip("/") for one in text.split(",") if one.strip()]
    for one in found:
        if not _URL.fullmatch(one):
            raise ValueError(
                f"{one!r} is not a valid URL; write one such as http://10.0.0.1:8420, or several with commas"
            )
    if not 0 < len(found) <= MOST:
        raise ValueError(f"must have 1 to {MOST} URLs, got {len(found)}")
    return list(dict.fromkeys(found))


def page_origin(text: str) -> str:
    """The origin of a page, such as `https://chat.example.org`, as browsers write it; or `*`.

    Raises:
        ValueError: it is not valid.
    """
    if text != ANY_ORIGIN and not _ORIGIN.fullmatch(text):
        raise ValueError(f"must be an origin such as https://chat.example.org, without a path, or *; got {text!r}")
    return text.lower()
