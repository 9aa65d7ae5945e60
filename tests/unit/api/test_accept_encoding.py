"""What `Accept-Encoding` allows."""

import pytest

from controller.api.body import accepts_gzip


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("gzip", True),
        ("br, GZIP ;q=0.5", True),
        ("x-gzip", True),
        ("*", True),
        ("*;q=0.1, br", True),
        ("gzip; q=0.8, identity; q=0.8", True),
        ("gzip;q=1.000", True),
        ("", False),
        ("br, deflate", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; Q = 0.000", False),
        ("*, gzip;q=0", False),
        ("*;q=0", False),
        ("gzip;q=0.5, identity", False),
        ("gzip;q=nan", False),
        ("gzip;q=-1", False),
        ("gzip;q=7", False),
        ("gzipped", False),
    ],
)
def test_quality_counts(header: str, allowed: bool) -> None:
    assert accepts_gzip(header) is allowed
