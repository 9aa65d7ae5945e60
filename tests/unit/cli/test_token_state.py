"""What the list of join tokens says of each."""

from datetime import UTC, datetime, timedelta

import pytest

from cli.objects.kinds import TOKENS
from schemas.api.access import TokenView
from schemas.api.view import from_plain

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "open"),
        ({"expires_at": NOW}, "expired"),
        ({"revoked_at": NOW}, "revoked"),
        ({"uses": 1, "used_at": NOW, "used_by": "gpu-1"}, "used by gpu-1"),
        ({"max_uses": 5}, "open, 0 of 5 hosts joined"),
        ({"max_uses": 5, "uses": 2, "used_at": NOW, "used_by": "b"}, "open, 2 of 5 hosts joined"),
        ({"max_uses": 5, "uses": 5, "used_at": NOW, "used_by": "e"}, "used up, 5 of 5 hosts joined"),
        ({"max_uses": 5, "uses": 2, "expires_at": NOW}, "expired, 2 of 5 hosts joined"),
    ],
)
def test_state_of_a_token(given: dict[str, object], shown: str) -> None:
    fields = {"id": "t", "created_at": NOW, "expires_at": NOW + timedelta(hours=1), **given}
    (state,) = [column for column in TOKENS.columns if column.title == "STATE"]
    assert state.cell(from_plain(TokenView, fields), NOW) == shown
