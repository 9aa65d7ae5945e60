"""Which header names a request's session."""

import itertools

import pytest

from gateway.requests.heads import SESSION_FIELDS, session_of


@pytest.mark.parametrize(
    "field", [b"x-session-id", b"x-claude-code-session-id", b"x-session-affinity", b"session-id", b"session_id"]
)
def test_each_header_of_a_session_counts(field: bytes) -> None:
    assert session_of({b"host": b"a", field: b"s1"}) == b"s1"


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(SESSION_FIELDS, 2)))
def test_the_more_specific_header_counts_first(first: bytes, second: bytes) -> None:
    assert session_of({second: b"b", first: b"a"}) == b"a"
    assert session_of({second: b"b", first: b""}) == b"b", "an empty one names none"


def test_a_request_may_have_no_session() -> None:
    assert session_of({b"x-session": b"a"}) == b""
