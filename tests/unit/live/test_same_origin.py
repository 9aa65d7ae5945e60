"""Whether a request comes from a page of its own origin."""

import pytest

from controller.live.same_origin import cookie_in, is_same_origin


@pytest.mark.parametrize(
    ("fetch_site", "origin", "host", "same"),
    [
        ("same-origin", "", "a:1", True),
        ("same-origin", "http://b", "a:1", True),  # the browser's own judgement
        ("cross-site", "http://a:1", "a:1", False),
        ("same-site", "", "a:1", False),
        ("none", "", "a:1", False),  # typed by the user: not by a page of ours
        ("", "http://a:1", "a:1", True),
        ("", "HTTP://A:1", "a:1", True),
        ("", "https://a", "a:443", True),
        ("", "http://a", "a:80", True),
        ("", "http://a", "a:443", False),
        ("", "http://a:2", "a:1", False),
        ("", "http://a:1.evil", "a:1", False),
        ("", "http://evil/a:1", "a:1", False),
        ("", "null", "a:1", False),
        ("", "", "a:1", False),
        ("", "http://", "", False),
        ("", "ftp://a:1", "a:1", False),
        ("", "http://[::1]:8080", "[::1]:8080", True),
    ],
)
def test_same_origin(fetch_site: str, origin: str, host: str, same: bool) -> None:
    assert is_same_origin(fetch_site=fetch_site, origin=origin, host=host) is same


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("", ""),
        ("s=1", "1"),
        ("a=2; s=1", "1"),
        ("s=1; s=2", "1"),
        ("xs=2;s=1", "1"),
        ('s="1"', "1"),
        ("s", ""),
        (";;=;s=a=b", "a=b"),
    ],
)
def test_cookie(header: str, value: str) -> None:
    assert cookie_in(header, "s") == value
