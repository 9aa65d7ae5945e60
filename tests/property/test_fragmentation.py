"""Fragmentation by its definition, computed GPU by GPU, compared with the arrays that are kept current."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.admission import Demand
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.fragmentation import Fragments
from controller.scheduling.search.place import place
from support.builders.fleet import Fleet, gpus_of
from support.profiles import examples

SIZE = 1_000
HOST = st.sampled_from([0, 100, 400])
DEMANDS = st.builds(
    Demand, st.integers(1, 2), st.sampled_from([200, 500, SIZE]), st.booleans(), HOST, st.sampled_from([0, 1000, 2000])
)
SEEN = st.dictionaries(DEMANDS, st.integers(1, 5), min_size=1, max_size=4)
ASKS = st.lists(
    st.builds(
        lambda gpus, share, whole, host, cpu: Ask(
            "", "d", (Layout(gpus, share if gpus else 0, whole and gpus > 0),), host_memory_mib=host, cpu_milli=cpu,
            strategy="least_fragmentation",
        ),
        st.integers(0, 2), st.sampled_from([200, 300, 700]), st.booleans(), HOST, st.sampled_from([0, 1000]),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


def fleet_of(sizes: list[int], seen: dict[Demand, int]) -> Inventory:
    fleet = Fleet()
    for number, gpus in enumerate(sizes):
        fleet.add(f"w{number}", [SIZE] * gpus, host_memory=1_000, cpus=4)
    inventory = fleet.inventory()
    for demand, count in seen.items():
        inventory.demand.add(demand, count)
    inventory.begin_pass()
    return inventory


def usable(inventory: Inventory, worker: int, demand: Demand) -> int:
    """How much of a worker's free GPU memory a demand could use."""
    gpus, workers = inventory.gpus, inventory.workers
    rows = [row for row in range(len(gpus.uuid)) if gpus.worker[row] == worker]
    have = [int((gpus.whole if demand.exclusive else gpus.free)[row]) for row in rows]
    fitting = [mib for mib in have if mib >= demand.memory_mib]
    memory = int(workers.memory[worker] - workers.memory_claimed[worker])
    cpu = int(workers.cpu[worker] - workers.cpu_claimed[worker])
    if len(fitting) < demand.gpus or memory < demand.host_memory_mib or cpu < demand.cpu_milli:
        return 0
    served = min(
        Fraction(cpu * demand.gpus, max(demand.cpu_milli, 1)),
        Fraction(memory * demand.gpus, max(demand.host_memory_mib, 1)),
        Fraction(len(fitting)),
    )
    return int(sum(fitting) * served / len(fitting))


def value(inventory: Inventory, worker: int) -> float:
    known = inventory.demand.known
    total = sum(known.values())
    return sum(usable(inventory, worker, d) * max(1, round(10_000 * n / total)) for d, n in known.items())


@examples(100)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), SEEN, ASKS)
def test_the_loss_follows_the_definition_and_no_place_loses_less(
    sizes: list[int], seen: dict[Demand, int], asks: list[Ask]
) -> None:
    inventory = fleet_of(sizes, seen)
    workers = range(len(sizes))
    for number, ask in enumerate(asks):
        before = [value(inventory, worker) for worker in workers]
        losses = []
        gpus = [(worker, (f"w{worker}:{index}",)) for worker in workers for index in range(sizes[worker])]
        for worker, named_gpus in gpus if ask.layouts[0].gpus == 1 else [(worker, ()) for worker in workers]:
            # the loss there, by trying it
            named = Ask(f"t{number}", f"d{number}", ask.layouts, host_memory_mib=ask.host_memory_mib,
                        cpu_milli=ask.cpu_milli, strategy=ask.strategy, workers=(f"w{worker}",),
                        gpus=named_gpus)  # fmt: skip
            if isinstance(place(inventory, [named])[0], Placed):
                losses.append(before[worker] - value(inventory, worker))
            inventory.rollback()
        decision = place(inventory, [Ask(f"i{number}", f"d{number}", ask.layouts, host_memory_mib=ask.host_memory_mib,
                                         cpu_milli=ask.cpu_milli, strategy=ask.strategy)])[0]  # fmt: skip
        assert isinstance(decision, Placed) == bool(losses)
        if isinstance(decision, Placed):
            assert sum(before) - sum(value(inventory, worker) for worker in workers) <= min(losses) + 10_000


def test_the_last_capacity_for_a_rare_large_demand_stays_free() -> None:
    fleet = Fleet().add("a", [SIZE] * 2).add("b", [SIZE] * 2, cpus=2)
    ask = Ask("i", "d", (Layout(1, 400, exclusive=False),), cpu_milli=100, strategy="least_fragmentation")
    inventory = fleet.inventory()
    assert gpus_of_first(inventory, ask) == ["a/0"]  # no demand is known: as pack
    inventory = fleet.inventory()
    inventory.demand.add(Demand(2, SIZE, exclusive=True, host_memory_mib=0, cpu_milli=3000), 1)
    inventory.demand.add(Demand(1, 400, exclusive=False, host_memory_mib=0, cpu_milli=100), 9)
    assert gpus_of_first(inventory, ask) == ["b/0"]  # `b` lacks the CPU for two whole GPUs anyway


def gpus_of_first(inventory: Inventory, ask: Ask) -> list[str]:
    decision = place(inventory, [ask])[0]
    assert isinstance(decision, Placed)
    return gpus_of(decision)


def test_fragments_of_a_fleet_without_gpus_are_none() -> None:
    inventory = fleet_of([0, 0], {Demand(1, 200, exclusive=False, host_memory_mib=0, cpu_milli=0): 1})
    ask = Ask("i", "d", (Layout(0, 0, exclusive=False),), cpu_milli=100, strategy="least_fragmentation")
    assert isinstance(place(inventory, [ask])[0], Placed)
    assert Fragments(inventory).placeholder == 0
