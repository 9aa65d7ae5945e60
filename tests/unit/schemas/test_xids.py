"""The codes that condemn a GPU are those of NVIDIA's catalog, but for the named differences."""

from schemas.status_reasons import REASONS
from schemas.xids import ACTIONS, ADDED, CONDEMNING, FALLEN_OFF, SPARED

# Those that applications cause themselves: NVIDIA's device plugin for Kubernetes ignores them.
OF_APPLICATIONS = {13, 31, 43, 45, 68, 109}


def test_a_code_condemns_if_and_only_if_the_catalog_asks_for_more_than_a_restart_of_the_application() -> None:
    asked = {code for codes in ACTIONS.values() for code in codes}
    assert len(asked) == sum(map(len, ACTIONS.values()))
    assert asked >= SPARED
    assert not asked & ADDED
    assert CONDEMNING.keys() == (asked - SPARED) | ADDED
    assert not CONDEMNING.keys() & OF_APPLICATIONS
    assert FALLEN_OFF in ACTIONS["RESTART_BM"]


def test_each_has_a_reason_of_its_own() -> None:
    assert len(set(CONDEMNING.values())) == len(CONDEMNING)
    known = {code for texts in REASONS.values() for code in texts}
    assert {f"xid_{code}" for code in CONDEMNING} <= known
