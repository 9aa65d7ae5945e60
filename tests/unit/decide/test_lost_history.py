"""Which hello shows that the ledger lost commits."""

import pytest

from controller.decide.lost_history import ABOVE_EVERY_S, MAX_LEAP, ReportedTerm, is_proven, proof_of, term_to_pass


@pytest.mark.parametrize(
    ("agent", "last_s", "passed"),
    [
        pytest.param(ReportedTerm(5, 2), None, None, id="it has seen what the ledger holds"),
        pytest.param(ReportedTerm(4, 1), None, None, id="or less"),
        pytest.param(ReportedTerm(9, 1), None, 9, id="a term that the ledger lost"),
        pytest.param(ReportedTerm(1, 3), None, 5, id="a session that it lost"),
        pytest.param(ReportedTerm(9, 3), ABOVE_EVERY_S - 1, None, id="not again so soon"),
        pytest.param(ReportedTerm(9, 3), ABOVE_EVERY_S, 9, id="later it may"),
        pytest.param(ReportedTerm(9, 3), -5.0, 9, id="the database's clock was set back"),
        pytest.param(ReportedTerm(5 + MAX_LEAP, 2), None, 5 + MAX_LEAP, id="as far as a history may be ahead"),
        pytest.param(ReportedTerm(6 + MAX_LEAP, 2), None, None, id="further than that"),
        pytest.param(ReportedTerm(6, 3 + MAX_LEAP), None, None, id="a session further than that"),
    ],
)
def test_term_to_pass(agent: ReportedTerm, last_s: float | None, passed: int | None) -> None:
    assert term_to_pass(ReportedTerm(5, 2), agent, last_s) == passed


def test_a_proof_holds_for_its_key_worker_and_numbers_alone() -> None:
    proof = proof_of(b"key", "w", ReportedTerm(5, 2))
    assert is_proven(b"key", "w", ReportedTerm(5, 2), proof) is True
    for key, worker, seen in (
        (b"other", "w", ReportedTerm(5, 2)),
        (b"key", "v", ReportedTerm(5, 2)),
        (b"key", "w", ReportedTerm(5, 3)),
    ):
        assert is_proven(key, worker, seen, proof) is False
    assert is_proven(b"key", "w", ReportedTerm(5, 2), "") is False
