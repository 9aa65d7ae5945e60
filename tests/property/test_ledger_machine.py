"""Model checking of the ledger: two real controllers, three hosts and everything that goes wrong, over PostgreSQL.

After each step the audit is clean and no device has two conflicting processes; after all faults cease, all settles.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuward.controller.store.migrate import migrate
from gpuward.schemas.manifest import DeploymentSpec
from support.machine_checks import check, progress, settle
from support.machine_claims import claim_straight, place_gang
from support.machine_controllers import Term
from support.machine_faults import Strike, StruckDatabase
from support.machine_hosts import GIB, Host
from support.machine_profiles import machine_settings
from support.machine_wire import agent_hears, agent_says, hub_hears, hub_hears_late, replay
from support.machine_world import GPU_MIB, World
from support.postgres import PostgresServer, create_database, drop_database

NAMES = st.sampled_from(["d0", "d1", "d2", "gang"])
HOSTS = st.integers(0, 2)
CONTROLLERS = st.integers(0, 1)
PICKS = st.integers(0, 63)
MEMORY = st.sampled_from([0, 10 * GIB, 24 * GIB])
PARTS = st.sampled_from(["step_instances", "step_placement", "step_workers", "step"])
STRIKES = st.builds(
    Strike, at=st.integers(1, 24), when=st.sampled_from(["before", "after"]), how=st.sampled_from(["drop", "cancel"])
)
ACTS = st.one_of(
    PARTS, PARTS, st.sampled_from(["take_over", "delete", "stop", "cordon", "write", "deliver", "hello", "gang"])
)
HUB_ACTS = st.sampled_from(["write", "deliver"])
SPECS = st.fixed_dictionaries(
    {
        "replicas": st.integers(0, 3),
        "restart": st.sampled_from(["always", "always", "on_failure", "never"]),
        "priority": st.sampled_from([100, 200]),
        "stop_on_disconnect_after": st.sampled_from(["none", "none", 60]),
        "resources": st.fixed_dictionaries(
            {
                "gpus": st.sampled_from([1, 1, 2]),
                "gpu_memory": st.sampled_from(["auto", "10GiB", "30GiB"]),
                "max_workers": st.sampled_from([1, 1, 2]),
            }
        ),
    }
)
# Each of these must have happened somewhere in a whole run, else the run has proven nothing about it.
MUST_HAPPEN = (
    "refusals", "crashes", "commits without an answer", "takeovers", "takeovers in the middle of a step",
    "stale terms stepped", "stale terms refused", "messages repeated", "messages lost", "messages late",
    "messages reordered", "orders replayed", "late hellos", "gangs placed", "hosts rebooted", "agents restarted",
    "workers deleted", "controllers killed", "examples settled",
)  # fmt: skip


class Bench:
    """What all examples share: a loop, a database, and the tally."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.loop = asyncio.new_event_loop()
        self.tally: Counter[str] = Counter()
        self._dsn = self.loop.run_until_complete(create_database(server))
        self.database = self.loop.run_until_complete(StruckDatabase.begin(self._dsn, self.tally))
        self.loop.run_until_complete(migrate(self.database))

    def close(self) -> None:
        self.loop.run_until_complete(self.database.close())
        self.loop.run_until_complete(drop_database(self._server, self._dsn))
        self.loop.close()


class LedgerMachine(RuleBasedStateMachine):
    """Rules are what may happen; each is one call into the world."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gpuward-machine-"))
        self.world = World(self.bench.database, self.folder, self.bench.tally)

    def do(self, what: Awaitable[Any]) -> Any:
        return self.bench.loop.run_until_complete(what)

    def host(self, n: int) -> Host:
        return self.world.hosts[n]

    @initialize(first=SPECS, second=SPECS)
    def begin(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.do(self.world.begin())
        self.apply("d0", first)
        self.apply("d1", second)
        self.work(2)

    @invariant()
    def holds(self) -> None:
        self.do(check(self.world))

    def teardown(self) -> None:
        try:
            if self.world.leader or self.world.deposed:
                self.do(settle(self.world))
                self.bench.tally["examples settled"] += 1
        finally:
            self.do(self.world.end())
            shutil.rmtree(self.folder)

    # Users and operators

    @rule(name=NAMES, fields=SPECS)
    def apply(self, name: str, fields: dict[str, Any]) -> None:
        spec = DeploymentSpec.model_validate({**fields, "engine": "custom", "command": ["run"]})
        self.do(self.world.apply(name, spec))

    @rule(name=NAMES, verb=st.sampled_from(["delete", "delete", "scale", "stop", "start"]), replicas=st.integers(0, 4))
    def user(self, name: str, verb: str, replicas: int) -> None:
        self.do(self.world.user(verb, name, replicas))

    @rule(n=HOSTS, verb=st.sampled_from(["cordon", "uncordon", "uncordon", "drain"]))
    def operator(self, n: int, verb: str) -> None:
        self.do(self.world.operator(verb, self.host(n)))

    @precondition(lambda self: not all(host.powered for host in self.world.hosts))
    @rule(n=HOSTS)
    def delete_worker(self, n: int) -> None:
        host = self.host(n)
        self.do(self.world.delete_worker(host, confirm_dead=not host.powered))

    # Controllers

    @rule(part=PARTS, strike=st.one_of(st.none(), STRIKES))
    def step(self, part: str, strike: Strike | None) -> None:
        self.do(self.world.attempt(getattr(self._leader(), part), strike))

    def _leader(self) -> Term:
        """Who leads; after a crash somebody takes over."""
        if self.world.leader is None:
            self.do(self.world.take_over(self.world.controllers[0]))
        assert self.world.leader is not None
        return self.world.leader

    @rule(n=CONTROLLERS, strike=st.one_of(st.none(), STRIKES))
    def take_over(self, n: int, strike: Strike | None) -> None:
        self.do(self.world.attempt(lambda: self.world.take_over(self.world.controllers[n]), strike))

    @precondition(lambda self: self.world.deposed)
    @rule(n=PICKS, part=PARTS)
    def step_deposed(self, n: int, part: str) -> None:
        self.do(self.world.step_deposed(n, part))

    @rule(n=CONTROLLERS, really=st.sampled_from([False, False, True]))
    def crash(self, n: int, really: bool) -> None:
        if really:
            self.do(self.world.crash(self.world.controllers[n]))

    @rule(n=CONTROLLERS, act=HUB_ACTS, strike=st.one_of(st.none(), STRIKES))
    def hub(self, n: int, act: str, strike: Strike | None) -> None:
        self.do(self.world.attempt(getattr(self.world.controllers[n], act), strike))

    @rule(rounds=st.integers(1, 3))
    def work(self, rounds: int) -> None:
        """All goes well for a while: who was cut off dials again, everything arrives."""
        for _ in range(rounds):
            for n, host in enumerate(self.world.hosts):
                if host.link is None:
                    self.do(self._connect(host, n % 2))
            self.do(self.world.attempt(self._leader().step))
            for controller in self.world.controllers:
                self.do(self.world.attempt(controller.deliver))
            for host in self.world.hosts:
                self._exchange(host)
            for controller in self.world.controllers:
                self.do(self.world.attempt(controller.write))

    def _exchange(self, host: Host) -> None:
        agent_hears(self.world, host)
        progress(host)
        if not host.frozen:
            self.do(agent_says(host))
        hub_hears(self.world, host)

    @rule(first=ACTS, at=st.integers(1, 20), second=ACTS, n=CONTROLLERS, name=NAMES, h=HOSTS)
    def interleave(self, first: str, at: int, second: str, n: int, name: str, h: int) -> None:
        """Something happens in the middle of something else."""
        deposes = second == "take_over" and first.startswith("step")
        self.do(self.world.interleave(self._act(first, n, name, h), at, self._act(second, n, name, h), deposes=deposes))

    def _act(self, what: str, n: int, name: str, h: int) -> Callable[[], Awaitable[Any]]:
        world, controller, host = self.world, self.world.controllers[n], self.host(h)
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "take_over": lambda: world.take_over(controller),
            "delete": lambda: world.user("delete", name, 0),
            "stop": lambda: world.user("stop", name, 0),
            "cordon": lambda: world.operator("cordon", host),
            "write": controller.write,
            "deliver": controller.deliver,
            "hello": lambda: self._connect(host, n),
            "gang": lambda: place_gang(world, n, 0),
        }
        return acts.get(what) or getattr(self._leader(), what)

    # Agents and the wire

    @rule(h=HOSTS, n=CONTROLLERS, strike=st.one_of(st.none(), STRIKES))
    def connect(self, h: int, n: int, strike: Strike | None) -> None:
        self.do(self._connect(self.host(h), n, strike))

    async def _connect(self, host: Host, n: int, strike: Strike | None = None) -> None:
        if host.journal is None or host.frozen:
            return
        if host.worker_id is None:
            await self.world.join(host)
        if host.worker_id is not None:
            await self.world.connect(host, self.world.controllers[n], strike)

    @rule(h=HOSTS, noticed=st.booleans())
    def cut(self, h: int, noticed: bool) -> None:
        if not self.host(h).frozen:
            self.do(agent_says(self.host(h)))
        self.world.drop(self.host(h), noticed=noticed)

    @rule(h=HOSTS)
    def dial_in_vain(self, h: int) -> None:
        host = self.host(h)
        if host.journal is not None and not host.frozen and host.worker_id is not None:
            self.world.dial_in_vain(host)

    @precondition(lambda self: self.world.dials)
    @rule(pick=PICKS, n=CONTROLLERS)
    def greet_late(self, pick: int, n: int) -> None:
        self.do(self.world.greet_late(pick, self.world.controllers[n]))

    @rule(h=HOSTS, limit=st.integers(1, 4), repeat=st.booleans(), swap=st.booleans())
    def talk(self, h: int, limit: int, repeat: bool, swap: bool) -> None:
        """Some messages cross, some remain on their way."""
        host = self.host(h)
        agent_hears(self.world, host, limit, repeat=repeat)
        if not host.frozen:
            self.do(agent_says(host))
        hub_hears(self.world, host, limit, repeat=repeat, swap=swap)

    @precondition(lambda self: self.world.late)
    @rule(pick=PICKS, seed=PICKS)
    def arrive_late(self, pick: int, seed: int) -> None:
        hub_hears_late(self.world, pick, seed)

    @rule(h=HOSTS, n=PICKS)
    def replay(self, h: int, n: int) -> None:
        replay(self.world, self.host(h), n)

    @rule(h=HOSTS, strike=st.one_of(st.none(), STRIKES))
    def beat(self, h: int, strike: Strike | None) -> None:
        if not self.host(h).frozen:
            self.do(self.world.beat(self.host(h), strike))

    # Hosts

    @rule(h=HOSTS, pick=PICKS, what=st.sampled_from(["running", "unhealthy", "end", "end", "fail"]))
    def process(self, h: int, pick: int, what: str) -> None:
        host = self.host(h)
        if not host.running:
            return
        key = sorted(host.running)[pick % len(host.running)]
        if what in ("end", "fail"):
            host.end(key, 0 if what == "end" else 1)
        else:
            host.progress(key, what)

    @rule(h=HOSTS)
    def restart_agent(self, h: int) -> None:
        host = self.host(h)
        if host.powered:
            self.world.drop(host, noticed=False)
            host.stop_agent()
            host.start_agent()
            self.bench.tally["agents restarted"] += 1

    @rule(h=HOSTS)
    def stop_agent(self, h: int) -> None:
        self.world.drop(self.host(h), noticed=True)
        self.host(h).stop_agent()

    @rule(h=HOSTS, noticed=st.booleans())
    def freeze(self, h: int, noticed: bool) -> None:
        host = self.host(h)
        if host.frozen:
            self.world.drop(host, noticed=noticed)
            host.thaw()
        elif host.journal is not None:
            host.frozen = True

    @rule(h=HOSTS)
    def power(self, h: int) -> None:
        host = self.host(h)
        if host.powered:
            self.world.drop(host, noticed=True)
            host.power_off()
        else:
            host.power_on()
            self.bench.tally["hosts rebooted"] += 1

    @rule(h=HOSTS, pick=PICKS, mib=st.sampled_from([None, 16 * GIB, GPU_MIB]))
    def change_gpu(self, h: int, pick: int, mib: int | None) -> None:
        """A GPU is gone, is smaller, or is whole again."""
        host = self.host(h)
        uuid = sorted(host.sizes)[pick % len(host.sizes)]
        if mib is None:
            host.gpus.pop(uuid, None)
        else:
            host.gpus[uuid] = mib

    # Claims past the scheduler, and time

    @rule(pick=PICKS, mib=MEMORY, restart=st.sampled_from(["always", "never"]))
    def gang(self, pick: int, mib: int, restart: str) -> None:
        """More GPUs than a host has: the scheduler of today leaves it waiting, and ranks are placed by hand."""
        resources = {"gpus": 4, "gpu_memory": "10GiB", "max_workers": 2}
        self.apply("gang", {"restart": restart, "resources": resources})
        self.do(self.world.attempt(self._leader().step_instances))
        self.do(self.world.attempt(lambda: place_gang(self.world, pick, mib)))

    @rule(pick=PICKS, mib=st.sampled_from([0, 4 * GIB, 24 * GIB, 41 * GIB]))
    def claim(self, pick: int, mib: int) -> None:
        self.do(claim_straight(self.world, pick, mib))

    @rule(seconds=st.sampled_from([1, 6, 16, 30, 70, 200]))
    def pass_time(self, seconds: int) -> None:
        self.do(self.world.pass_time(seconds))


@pytest.fixture(scope="module")
def bench(postgres: PostgresServer) -> Iterator[Bench]:
    made = Bench(postgres)
    yield made
    made.close()


def test_the_ledger_holds_whatever_happens(bench: Bench) -> None:
    LedgerMachine.bench = bench
    run_state_machine_as_test(LedgerMachine, settings=machine_settings())
    print("\n" + "\n".join(f"{n:8} {what}" for what, n in sorted(bench.tally.items())))
    missing = [what for what in MUST_HAPPEN if not bench.tally[what]]
    assert not missing, f"never happened, so nothing is proven of it: {missing}"
