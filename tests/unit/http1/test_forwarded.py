import ipaddress

import pytest

from http1.forwarded import Origin, TrustedProxies

TRUSTED = TrustedProxies(ipaddress.ip_network(n) for n in ("10.0.0.0/24", "fd00::/64"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "proto", "expected"),
    [
        ("192.0.2.1", ["198.51.100.7"], "https", Origin("192.0.2.1")),  # a stranger's own words
        ("10.0.0.5", [], "", Origin("10.0.0.5")),
        ("10.0.0.5", ["198.51.100.7"], "https", Origin("198.51.100.7", "https")),
        ("10.0.0.5", ["203.0.113.9, 198.51.100.7"], "", Origin("198.51.100.7")),  # its left part may be invented
        ("10.0.0.5", ["203.0.113.9", "198.51.100.7, 10.0.0.6"], "", Origin("198.51.100.7")),  # over two proxies
        ("10.0.0.5", ["10.0.0.7"], "", Origin("10.0.0.7")),
        ("10.0.0.5", ["203.0.113.9, unknown"], "", Origin("10.0.0.5")),
        ("10.0.0.5", ["198.51.100.7:4711"], "ftp", Origin("198.51.100.7")),
        ("10.0.0.5", ["[2001:db8::1]:4711"], "https, http", Origin("2001:db8::1", "http")),
        ("fd00::1", ["2001:db8::1"], "", Origin("2001:db8::1")),
        ("::ffff:10.0.0.5", ["198.51.100.7"], "", Origin("198.51.100.7")),
        ("", ["198.51.100.7"], "", Origin("")),
    ],
)
def test_the_rightmost_entry_that_no_trusted_proxy_is_counts(
    peer: str, forwarded_for: list[str], proto: str, expected: Origin
) -> None:
    assert TRUSTED.origin(peer, {"X-Forwarded-Proto": proto}, forwarded_for) == expected


def test_without_a_setting_no_proxy_is_trusted() -> None:
    assert "127.0.0.1" not in TrustedProxies()
