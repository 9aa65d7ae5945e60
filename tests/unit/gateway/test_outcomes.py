"""What may go to another replica, and what is final."""

import pytest

from gateway.routing.retry_rules import VERDICTS, Happening, Settled, TryAnother, of_agents_answer

H = Happening


def test_only_what_no_engine_ran_goes_to_another_replica() -> None:
    again = {happening for happening, verdict in VERDICTS.items() if isinstance(verdict, TryAnother)}
    assert again == {H.NOT_CONNECTED, H.AGENT_REFUSED, H.ENGINE_BUSY}
    assert set(VERDICTS) == set(Happening)


@pytest.mark.parametrize(
    ("happening", "status", "code"),
    [
        (H.BROKE_OFF, 502, "engine_died"),
        (H.SILENT, 504, "timed_out"),
        (H.NO_FILES, 503, "overloaded"),
        (H.BROKE_OFF_MIDWAY, None, "engine_died"),
        (H.SILENT_MIDWAY, None, "timed_out"),
    ],
)
def test_everything_else_is_final(happening: Happening, status: int | None, code: str) -> None:
    assert VERDICTS[happening] == Settled(status, code)


@pytest.mark.parametrize(
    ("refusal", "outcome", "status", "found"),
    [
        ("not_running", None, 503, H.AGENT_REFUSED),
        ("a_code_of_a_later_version", None, 503, H.AGENT_REFUSED),
        ("engine_unreachable", None, 502, H.BROKE_OFF),  # an older agent's mark, set also after the first byte
        (None, "engine_died", 502, H.BROKE_OFF),
        (None, "timed_out", 504, H.SILENT),
        (None, None, 503, H.ENGINE_BUSY),
        (None, None, 500, None),
        (None, None, 429, None),
        (None, None, 200, None),
    ],
)
def test_an_agents_answer(refusal: str | None, outcome: str | None, status: int, found: Happening | None) -> None:
    assert of_agents_answer(refusal=refusal, outcome=outcome, status=status) is found
