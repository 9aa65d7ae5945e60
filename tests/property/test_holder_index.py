"""The bounds of the index of holders against all sets of holders: never above the truth, and exact for one GPU."""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.admission import Holder
from controller.domain.placement import Ask, Layout, PlannedClaim
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.inventory.tables import NEVER
from controller.scheduling.search.cached_search import find, search_for
from support.builders.fleet import GIB, Fleet
from support.profiles import examples

SIZE = 8 * GIB
HELD = st.tuples(
    st.integers(0, 2),  # worker
    st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True),  # GPUs
    st.sampled_from([None, GIB, 3 * GIB, 5 * GIB]),  # memory of each; None: exclusive
    st.sampled_from([0, GIB]),  # of the host
    st.sampled_from([0, 1000]),
    st.booleans(),  # a task
    st.integers(0, 2),  # priority
)
SHAPES = st.tuples(
    st.integers(1, 3), st.sampled_from([GIB, 4 * GIB, SIZE, SIZE + 1]), st.booleans(),
    st.sampled_from([0, 2 * GIB]), st.sampled_from([0, 2000]),
)  # fmt: skip


def scene(held: Sequence[tuple], sizes: Sequence[int]) -> tuple[Inventory, list[Holder]]:
    fleet = Fleet()
    for number, gpus in enumerate(sizes):
        fleet.add(f"w{number}", [SIZE] * gpus, host_memory=3 * GIB, cpus=3)
    inventory = fleet.inventory()
    assert inventory.gpus.free.size, "the arrays are there"
    holders: list[Holder] = []
    for worker, gpus, memory, host_memory, cpu, task, priority in held:
        name = f"w{worker}"
        rows = [inventory.gpu_row(f"{name}/{index}") for index in gpus]
        have = inventory.gpus.whole if memory is None else inventory.gpus.free
        if any(row is None or have[row] < (memory or 1) for row in rows):
            continue
        host = inventory.workers
        row = inventory.row_of_name[name]
        if host.memory[row] - host.memory_claimed[row] < host_memory or host.cpu[row] - host.cpu_claimed[row] < cpu:
            continue
        claims = [PlannedClaim(f"{name}/{index}", memory or SIZE, 0, memory is None, n) for n, index in enumerate(gpus)]
        claims.append(PlannedClaim(f"host-{name}", host_memory, cpu, False, len(gpus)))
        one = Holder(f"h{len(holders)}", priority, 0.0, frozenset({f"id-{name}"}), tuple(claims), task=task)
        inventory.restore(one.claims)
        holders.append(one)
    return inventory, holders


def enough(inventory: Inventory, holders: Sequence[Holder], ask: Ask) -> list[tuple[Holder, ...]]:
    """All sets of holders without which the ask fits."""
    sets = (some for size in range(len(holders) + 1) for some in combinations(holders, size))
    fitting = []
    for some in sets:
        with without(inventory, some):
            if find(inventory, ask) is not None:
                fitting.append(some)
    return fitting


@examples(150)
@given(st.lists(HELD, max_size=5), st.lists(st.integers(0, 3), min_size=1, max_size=3), SHAPES, st.integers(0, 3))
def test_the_holders_in_the_way_are_bounded_from_below(
    held: list[tuple], sizes: list[int], shape: tuple, below: int
) -> None:
    inventory, holders = scene(held, sizes)
    gpus, memory, exclusive, host_memory, cpu = shape
    layout = Layout(gpus, memory, exclusive)
    ask = Ask("p", "d", (layout,), host_memory_mib=host_memory, cpu_milli=cpu)
    index = HolderIndex(inventory, holders)
    allowed = index.up_to(2 * below)
    candidates = search_for(inventory, ask).candidates(0)
    fewest = index.in_the_way(candidates, allowed)
    number, weight = index.bounds(candidates, fewest, allowed)
    groups = inventory.groups.worker.tolist()
    for group, worker in enumerate(groups):
        name = inventory.workers.entries[worker].name
        here = Ask("p", "d", (layout,), host_memory_mib=host_memory, cpu_milli=cpu, workers=(name,))
        sets = enough(inventory, [one for one in holders if one.level <= 2 * below], here)
        if not sets:
            assert fewest[group] == number[group] == weight[group] == NEVER
            continue
        least = min(map(len, sets))
        assert fewest[group] <= number[group] <= least
        assert weight[group] <= min(sum(one.weight for one in some) for some in sets)
        if gpus == 1 and not host_memory and not cpu:
            assert fewest[group] == least
