"""Addresses as users write them: URLs of several controllers, separated by commas, and origins of pages."""

import re
from typing import Final

ANY_ORIGIN: Final = "*"
_ORIGIN: Final = re.compile(r"https?://[^\s/,?#*@]+")
MOST: Final = 16
_URL: Final = re.compile(r"https?://[^\s/,]+(/[^\s,]*)?")


def addresses_in(text: str) -> list[str]:
    """The distinct URLs of a list, without trailing slashes.

    Raises:
        ValueError: a URL is not valid, or their number is not 1 to `MOST`.
    """
    urls = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    for url in urls:
        if not _URL.fullmatch(url):
            raise ValueError(
                f"{url!r} is not a valid URL; write one such as http://10.0.0.1:8420, or several with commas"
            )
    if not 0 < len(urls) <= MOST:
        raise ValueError(f"must have 1 to {MOST} URLs, got {len(urls)}")
    return list(dict.fromkeys(urls))


def page_origin(text: str) -> str:
    """The origin of a page as browsers write it, such as `https://chat.example.org`; or `*`.

    Raises:
        ValueError: it is not valid.
    """
    if text != ANY_ORIGIN and not _ORIGIN.fullmatch(text):
        raise ValueError(f"must be an origin such as https://chat.example.org, without a path, or *; got {text!r}")
    return text.lower()
