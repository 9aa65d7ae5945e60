"""Pages of other origins: which may read an answer of a model, and what a browser is answered that asks before."""

import pytest

from gateway.admission.cors import Cors
from schemas.addresses import page_origin

PAGE = b"https://chat.example.org"
PREFLIGHT = {b"origin": PAGE, b"access-control-request-method": b"POST"}


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((), PAGE, False),
        (("https://chat.example.org",), PAGE, True),
        (("https://chat.example.org",), b"https://Chat.example.org", True),
        (("https://chat.example.org",), b"http://chat.example.org", False),
        (("https://chat.example.org",), b"https://chat.example.org.evil.example", False),
        (("https://chat.example.org",), b"null", False),
        (("http://localhost:3000", "https://chat.example.org"), b"http://localhost:3000", True),
        (("*",), b"http://anything.example", True),
        (("*",), b"null", True),
    ],
)
def test_pages_of_listed_origins_read_answers(origins: tuple[str, ...], origin: bytes, allowed: bool) -> None:
    cors = Cors(origins)
    lines = cors.lines({b"origin": origin})
    assert (b"access-control-allow-origin: " + origin + b"\r\n" in lines) is allowed
    assert b"credentials" not in lines, "no cookie counts"
    assert (b"vary: origin" in lines) is bool(origins), "caches keep answers apart"
    asked = cors.preflight(b"OPTIONS", PREFLIGHT | {b"origin": origin})
    assert (asked is not None) is allowed


def test_programs_send_no_origin() -> None:
    assert Cors(("*",)).lines({b"host": b"a"}) == b""


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
def test_a_preflight_is_an_options(method: bytes) -> None:
    assert Cors(("*",)).preflight(method, PREFLIGHT) is None
    assert Cors(("*",)).preflight(b"OPTIONS", {b"origin": PAGE}) is None


def test_a_preflight_allows_the_headers_that_a_client_names() -> None:
    fields = dict(Cors(("*",)).preflight(b"OPTIONS", PREFLIGHT | {b"access-control-request-headers": b"x-a, b"}) or ())
    assert fields[b"access-control-allow-headers"] == b"x-a, b"
    assert {b"GET", b"POST"} <= set(fields[b"access-control-allow-methods"].split(b", "))


@pytest.mark.parametrize("text", ["https://chat.example.org", "http://localhost:3000", "*", "https://[::1]:8443"])
def test_origins_are_taken_as_browsers_write_them(text: str) -> None:
    assert page_origin(text) == text


@pytest.mark.parametrize(
    "text",
    ["chat.example.org", "https://chat.example.org/", "https://a/b", "https://", "null", "https://*.a.org/x", ""],
)
def test_what_no_browser_sends_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        page_origin(text)
