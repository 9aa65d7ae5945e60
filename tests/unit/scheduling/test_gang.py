"""Instances over several workers: equal counts, matching GPUs, the leader first; all or nothing."""

from dataclasses import replace

import pytest

from controller.domain.placement import Ask, Layout, Placed, Unplaced
from controller.scheduling.search.place import place
from schemas.api.explain import Explain
from support.builders.fleet import GIB, Fleet, gang_of

H80, W24A, W24B, W16 = 80 * GIB, 24810, 24564, 16376
R1_SHARE = 49_400  # MiB of each of 16 GPUs


def gang(count: int, workers: int, memory: int = GIB, **fields: object) -> Ask:
    layout = Layout(count, memory, exclusive=False, workers=workers)
    return replace(Ask("i", "d", (layout,), host_memory_mib=GIB), **fields)  # type: ignore[arg-type] # fields of Ask


def placed(fleet: Fleet, ask: Ask, shuffle: int | None = None) -> dict[str, list[str]]:
    decision = place(fleet.inventory(shuffle), [ask])[0]
    assert isinstance(decision, Placed), decision
    return gang_of(decision)


def refused(fleet: Fleet, ask: Ask) -> Explain:
    decision = place(fleet.inventory(), [ask])[0]
    assert isinstance(decision, Unplaced), decision
    return decision.explain


def hosts(*names: str, gpus: int = 8, memory: int = H80) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.add(name, [memory] * gpus)
    return fleet


def test_c16_eight_and_eight_and_never_the_small_ones() -> None:
    fleet = hosts("h80_1", "h80_2", "h80_3", "h80_4").add("w24a", [W24A]).add("w24b", [W24B])
    found = placed(fleet, gang(16, 2, R1_SHARE))
    assert list(found) == ["h80_1", "h80_2"]
    assert [len(gpus) for gpus in found.values()] == [8, 8]


def test_every_rank_claims_of_its_own_host() -> None:
    decision = place(hosts("a", "b", gpus=2).inventory(), [gang(4, 2)])[0]
    assert isinstance(decision, Placed)
    assert decision.workers == ("id-a", "id-b")
    assert [(c.device, c.memory_mib, c.rank, c.position) for c in decision.claims] == [
        ("a/0", GIB, 0, 0), ("a/1", GIB, 0, 1), ("host-a", GIB, 0, 2),
        ("b/0", GIB, 1, 0), ("b/1", GIB, 1, 1), ("host-b", GIB, 1, 2),
    ]  # fmt: skip


def test_c18_two_and_two() -> None:
    assert placed(hosts("w16x2", "w16x2b", gpus=2, memory=W16), gang(4, 2)) == {
        "w16x2": ["w16x2/0", "w16x2/1"],
        "w16x2b": ["w16x2b/0", "w16x2b/1"],
    }


@pytest.mark.parametrize("workers", [2, 3])
def test_c20_a_host_for_each_copy(workers: int) -> None:
    found = placed(hosts("h80_1", "h80_2", "h80_3"), gang(8 * workers, workers, 60 * GIB))
    assert [len(gpus) for gpus in found.values()] == [8] * workers


def test_c21_slightly_unequal_gpus_still_pair_up() -> None:
    fleet = Fleet().add("w24a", [W24A]).add("w24b", [W24B]).set("w24b/0", reserved_mib=GIB, model="other")
    assert placed(fleet, gang(2, 2, 20 * GIB)) == {"w24a": ["w24a/0"], "w24b": ["w24b/0"]}


def test_gpus_of_other_sizes_do_not_match() -> None:
    fleet = Fleet().add("a", [W24A]).add("b", [H80]).set("b/0", model="large")
    found = refused(fleet, gang(2, 2))
    assert found.rejected == {"mixed_accelerators": 2}
    assert found.nearest is not None
    assert found.nearest.code == "mixed_accelerators"
    assert found.nearest.message.startswith("need 2 of matching models, best 1")


def test_one_kind_is_preferred_to_matching_kinds() -> None:
    fleet = Fleet().add("a", [W24A]).add("b", [W24B]).add("c", [W24B])
    fleet.set("b/0", model="other").set("c/0", model="other")
    assert list(placed(fleet, gang(2, 2))) == ["b", "c"]


def test_two_vendors_never_share_an_instance() -> None:
    fleet = hosts("a", "b", gpus=1).set("b/0", vendor="amd")
    assert refused(fleet, gang(2, 2)).rejected == {"mixed_accelerators": 2}
    both = Fleet().add("a", [H80, H80]).set("a/1", vendor="amd")
    assert refused(both, gang(2, 1)).rejected == {"mixed_accelerators": 1}
    assert len(placed(both, gang(1, 1))) == 1
    assert refused(both, gang(2, 1, gpus=("a/0", "a/1"), all_gpus=True)).rejected == {"mixed_accelerators": 1}


def test_c22_named_by_hand() -> None:
    fleet = Fleet().add("w24a", [W24A]).add("w24b", [W24B]).set("w24b/0", model="other")
    named = gang(2, 2, gpus=("w24b:0", "w24a:0"), all_gpus=True)
    assert placed(fleet, named) == {"w24a": ["w24a/0"], "w24b": ["w24b/0"]}
    assert refused(fleet, gang(2, 1, gpus=("w24a:0", "w24b:0"), all_gpus=True)).rejected == {"count_mismatch": 2}


def test_c24_unequal_counts_only_where_gpus_are_named() -> None:
    fleet = hosts("a80_1", "a80_2", "a80_3", gpus=2)
    named = gang(4, 3, gpus=("a80_3:0", "a80_1:0", "a80_2:0", "a80_1:1"), all_gpus=True)
    assert placed(fleet, named) == {"a80_1": ["a80_1/0", "a80_1/1"], "a80_2": ["a80_2/0"], "a80_3": ["a80_3/0"]}
    leader = gang(4, 3, gpus=("a80_3:0", "a80_1:0", "a80_2:0", "a80_3:1"), all_gpus=True)
    assert list(placed(fleet, leader)) == ["a80_3", "a80_1", "a80_2"]
    assert refused(fleet.claim("a80_2/0"), named).rejected == {"count_mismatch": 2, "gpu_in_use": 1}


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    fleet = hosts("a", "b", "c", gpus=2).claim("b/0").claim("c/0")
    inventory = fleet.inventory()
    found = place(inventory, [gang(4, 2)])[0]
    assert isinstance(found, Unplaced)
    assert found.explain.rejected == {"gpu_in_use": 2, "count_mismatch": 1}
    assert found.explain.nearest is not None
    assert found.explain.nearest.message == "need 2 such workers, found 1"
    assert inventory.gpus.claims[:-1].tolist() == [0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("shuffle", range(5))
def test_ties_are_broken_the_same_way(shuffle: int) -> None:
    fleet = hosts("a", "b", "c", "d", gpus=2)
    fleet.claim("c/0", GIB).claim("d/1", GIB)
    assert placed(fleet, gang(2, 2), shuffle) == {"c": ["c/0"], "d": ["d/1"]}
    assert list(placed(fleet, gang(4, 2), shuffle)) == ["c", "d"]


def test_the_hosts_of_all_ranks_must_do() -> None:
    fleet = Fleet().add("a", [H80], host_memory=GIB).add("b", [H80], host_memory=GIB // 2).add("c", [H80])
    assert list(placed(fleet, gang(2, 2))) == ["a", "c"]
    assert refused(fleet, gang(3, 3)).rejected == {"count_mismatch": 2, "host_memory": 1}


def test_a_layout_on_one_worker_comes_before_a_gang() -> None:
    one, two = Layout(2, 40 * GIB, exclusive=False), Layout(4, 20 * GIB, exclusive=False, workers=2)
    fleet = hosts("a", "b", gpus=2)
    asks = [Ask(f"i{n}", "d", (one, two)) for n in range(5)]
    decisions = place(fleet.inventory(), asks)
    assert [len(d.workers) for d in decisions if isinstance(d, Placed)] == [1, 1, 1, 1]
    tight = fleet.claim("a/0", 50 * GIB).claim("b/0", 50 * GIB)
    assert list(placed(tight, asks[0])) == ["a", "b"]
