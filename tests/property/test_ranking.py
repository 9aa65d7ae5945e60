"""The best place by the documented order, computed worker by worker in plain Python, and by the search."""

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.admission import InstanceLoad
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet, gpus_of
from support.profiles import examples

MEMORY = st.sampled_from([0, GIB, 2 * GIB, 4 * GIB])
WORKERS = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.sampled_from([8 * GIB, 16 * GIB]),
            "claims": st.lists(st.sampled_from([(), (), (GIB,), (2 * GIB,), (GIB, 2 * GIB), (None,)]), max_size=3),
            "loads": st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 2)), max_size=3),
            "host_memory": st.sampled_from([2 * GIB, 8 * GIB]),
            "cpus": st.sampled_from([1, 4]),
        }
    ),
    min_size=1,
    max_size=4,
)
ASKS = st.builds(
    lambda gpus, memory, exclusive, host, cpu, strategy: Ask(
        "i", "d", (Layout(gpus, memory if gpus else 0, exclusive and gpus > 0),), host_memory_mib=host, cpu_milli=cpu,
        strategy=strategy,
    ),
    st.integers(0, 3), MEMORY, st.booleans(), st.sampled_from([0, GIB, 4 * GIB]), st.sampled_from([0, 500, 2000]),
    st.sampled_from(["pack", "spread"]),
)  # fmt: skip


class World:
    """A fleet of workers with GPUs of one size each, and the instances on them."""

    def __init__(self, workers: list[dict[str, object]]) -> None:
        self.fleet, self.loads = Fleet(), []
        for number, worker in enumerate(workers):
            name, claims = f"w{number:02}", worker["claims"]
            self.fleet.add(name, [worker["size"]] * len(claims), host_memory=worker["host_memory"], cpus=worker["cpus"])
            for index, memories in enumerate(claims):
                for memory in memories:
                    self.fleet.claim(f"{name}/{index}", memory)
            for uid, index in worker["loads"]:
                gpus = (f"{name}/{index}",) if index < len(claims) else ()
                self.loads.append(InstanceLoad(f"{name}-{len(self.loads)}", uid, (f"id-{name}",), gpus))

    def inventory(self) -> Inventory:
        inventory = self.fleet.inventory()
        inventory.upsert_load(self.loads)
        return inventory

    def best(self, ask: Ask) -> list[str] | None:
        """The chosen GPUs, or the worker for an ask without GPUs; None if it fits nowhere."""
        chosen = self._first(ask)
        # `spread` shares a GPU with an instance of its deployment only where no GPU that nothing is on would do.
        if chosen and ask.strategy == "spread" and any(uuid in load.gpus for uuid in chosen for load in self._own(ask)):
            return self._first(ask, empty=True) or chosen
        return chosen

    def _own(self, ask: Ask) -> list[InstanceLoad]:
        return [load for load in self.loads if load.deployment_uid == ask.deployment_uid]

    def _first(self, ask: Ask, *, empty: bool = False) -> list[str] | None:
        fitting = [key for name in self.fleet.workers if (key := self._key(name, ask, empty=empty)) is not None]
        return min(fitting)[-1] if fitting else None

    def _key(self, name: str, ask: Ask, *, empty: bool) -> tuple[object, ...] | None:
        (layout,) = ask.layouts
        host = self.fleet.devices[f"host-{name}"]
        memory, cpu = host.memory_mib - host.claimed_mib, host.cpu_milli - host.claimed_cpu_milli
        if memory < ask.host_memory_mib or cpu < ask.cpu_milli:
            return None
        on_host = [load for load in self.loads if load.workers == (f"id-{name}",)]
        own = sum(load.deployment_uid == ask.deployment_uid for load in on_host)
        gpus = sorted(uuid for uuid in self.fleet.devices if uuid.startswith(f"{name}/"))
        if not layout.gpus:
            if ask.strategy == "spread":
                return (own, len(on_host), name, [name])
            free = sum(max(self._free(uuid), 0) for uuid in gpus)
            left = memory if ask.host_memory_mib else cpu
            return (free, left, name, [name]) if ask.host_memory_mib or ask.cpu_milli else (len(on_host), name, [name])
        suitable = [uuid for uuid in gpus if self._have(uuid, layout) >= layout.memory_mib]
        if empty:
            suitable = [uuid for uuid in suitable if self._is_empty(uuid)]
        if len(suitable) < layout.gpus:
            return None
        chosen = sorted(suitable, key=lambda uuid: (self._gpu_key(uuid, ask), uuid))[: layout.gpus]
        last = self._gpu_key(chosen[-1], ask)
        if ask.strategy == "spread":
            return (own, len(on_host), last, name, sorted(chosen))
        unclaimed = sum(not self.fleet.devices[uuid].claims for uuid in gpus)
        return (len(suitable) if layout.gpus > 1 else 0, last, unclaimed, name, sorted(chosen))

    def _is_empty(self, uuid: str) -> bool:
        return not self.fleet.devices[uuid].claims and not any(uuid in load.gpus for load in self.loads)

    def _gpu_key(self, uuid: str, ask: Ask) -> tuple[int, ...]:
        (layout,) = ask.layouts
        if ask.strategy == "pack":
            return self._have(uuid, layout), not layout.exclusive and not self.fleet.devices[uuid].claims
        here = [load for load in self.loads if uuid in load.gpus]
        own = sum(load.deployment_uid == ask.deployment_uid for load in here)
        return own, len(here), self.fleet.devices[uuid].claimed_mib

    def _free(self, uuid: str) -> int:
        gpu = self.fleet.devices[uuid]
        return -1 if gpu.exclusive_claims else max(gpu.memory_mib - gpu.claimed_mib, -1)

    def _have(self, uuid: str, layout: Layout) -> int:
        gpu = self.fleet.devices[uuid]
        return (-1 if gpu.claims else gpu.memory_mib) if layout.exclusive else self._free(uuid)


def found(inventory: Inventory, ask: Ask) -> list[str] | None:
    (decision,) = place(inventory, [ask])
    inventory.rollback()
    if not isinstance(decision, Placed):
        return None
    return sorted(gpus_of(decision)) or [decision.workers[0].removeprefix("id-")]


@examples(200)
@given(WORKERS, st.lists(ASKS, min_size=1, max_size=4))
def test_the_best_place_follows_the_documented_order(workers: list[dict[str, object]], asks: list[Ask]) -> None:
    world = World(workers)
    inventory = world.inventory()
    for ask in asks:
        assert found(inventory, ask) == world.best(ask)


@examples(50)
@given(WORKERS, ASKS)
def test_many_equal_workers_decide_as_few(workers: list[dict[str, object]], ask: Ask) -> None:
    """Large fleets rank one group of each state."""
    world = World([worker for worker in workers for _ in range(20)])
    inventory = world.inventory()
    assert found(inventory, ask) == world.best(ask)
    first = next(iter(world.fleet.devices))
    world.fleet.set(first, claimed_mib=GIB, claims=1)
    inventory.upsert_devices([world.fleet.devices[first]])
    assert found(inventory, ask) == world.best(ask)
