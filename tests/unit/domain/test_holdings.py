"""Holdings, replaced device by device."""

from controller.domain.admission import HeldClaim, Holdings
from controller.domain.placement import PlannedClaim

GIB = 1024


def held(instance: str, device: str, rank: int = 0, mib: int = GIB) -> tuple[str, HeldClaim]:
    claim = PlannedClaim(device, mib, 0, exclusive=False, position=0, rank=rank)
    return instance, HeldClaim("d", device[0], gpu=True, claim=claim)


def test_a_gang_releases_its_claims_rank_by_rank() -> None:
    holdings = Holdings()
    list(holdings.replace(["a/0", "b/0"], [held("gang", "a/0"), held("gang", "b/0", 1)]))
    ((instance, left),) = holdings.replace(["b/0"], [])
    assert (instance, left and set(left.by_device), left and left.workers) == ("gang", {"a/0"}, {"a"})
    assert list(holdings.replace(["b/0"], [])) == [], "an unchanged holding is not reported again"
    assert list(holdings.replace(["a/0"], [])) == [("gang", None)]
    assert holdings.get("gang") is None


def test_a_larger_claim_on_the_same_gpu_is_a_change() -> None:
    holdings = Holdings()
    list(holdings.replace(["a/0"], [held("one", "a/0")]))
    ((_, now),) = holdings.replace(["a/0"], [held("one", "a/0", mib=2 * GIB)])
    assert now is not None
    assert [c.memory_mib for c in now.claims] == [2 * GIB]
