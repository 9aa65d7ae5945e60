"""The ledger machine: its rules are what may happen, in any order; each is one call into the world."""

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from machine.checks import check, progress, settle
from machine.claims import count_gangs, insert_claim
from machine.clock import pass_time
from machine.controllers import Term
from machine.examples import (
    ACTS,
    CONTROLLERS,
    HOSTS,
    HUB_ACTS,
    LINES,
    NAMES,
    PARTS,
    PICKS,
    SPECS,
    STRIKES,
    Bench,
)  # fmt: skip
from machine.faults import Strike
from machine.gateway import count_events
from machine.hosts import GIB, GPU_MIB, Host
from machine.relocations import count_relocations, request_relocations
from machine.serving_rules import ServingRules
from machine.wire import agent_hears, agent_says, hub_hears, hub_hears_late, replay
from machine.world import World
from schemas.manifest.deployment import DeploymentSpec

_FOLDERS = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - journals of one example


class LedgerMachine(ServingRules):
    """Checked after every rule; at the end all faults cease and everything settles."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gpuward-machine-", dir=_FOLDERS))
        self.bench.reset_names()
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
        self.work(2, ["good"] * 3)

    @invariant()
    def holds(self) -> None:
        self.do(check(self.world))

    def abandon(self) -> None:
        """Ends without settling, after a failure."""
        self.do(self.world.end())
        shutil.rmtree(self.folder)

    def teardown(self) -> None:
        try:
            if self.world.leader or self.world.former_terms:
                self.do(settle(self.world))
                self.do(count_relocations(self.world))
                self.do(count_events(self.world.database, self.bench.tally))
                self.bench.tally["examples settled"] += 1
        finally:
            self.abandon()

    # Users and operators

    @rule(name=NAMES, fields=SPECS)
    def apply(self, name: str, fields: dict[str, Any]) -> None:
        spec = DeploymentSpec.model_validate({**fields, "engine": "simulated"})
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
        """The leader; after a crash another controller takes over."""
        if self.world.leader is None:
            self.do(self.world.take_over(self.world.controllers[0]))
        assert self.world.leader is not None
        return self.world.leader

    @rule(n=CONTROLLERS, strike=st.one_of(st.none(), STRIKES))
    def take_over(self, n: int, strike: Strike | None) -> None:
        self.do(self.world.attempt(lambda: self.world.take_over(self.world.controllers[n]), strike))

    @precondition(lambda self: self.world.former_terms)
    @rule(n=PICKS, part=PARTS)
    def step_former_leader(self, n: int, part: str) -> None:
        self.do(self.world.step_former_leader(n, part))

    @rule(n=CONTROLLERS, really=st.sampled_from([False, False, True]))
    def crash(self, n: int, really: bool) -> None:
        if really:
            self.do(self.world.crash(self.world.controllers[n]))

    @rule(n=CONTROLLERS, act=HUB_ACTS, strike=st.one_of(st.none(), STRIKES))
    def hub(self, n: int, act: str, strike: Strike | None) -> None:
        self.do(self.world.attempt(getattr(self.world.controllers[n], act), strike))

    @rule(rounds=st.integers(1, 3), lines=st.lists(LINES, min_size=3, max_size=3))
    def work(self, rounds: int, lines: list[str]) -> None:
        """The leader and the hubs work for some rounds, over good or bad connections."""
        for _ in range(rounds):
            for n, host in enumerate(self.world.hosts):
                if host.link is None and lines[n] != "dead":
                    self.do(self._connect(host, n % 2))
            self.do(self.world.attempt(self._leader().step))
            for controller in self.world.controllers:
                self.do(self.world.attempt(controller.deliver))
            for host, line in zip(self.world.hosts, lines, strict=True):
                self._exchange(host, line)
            for controller in self.world.controllers:
                self.do(self.world.attempt(controller.write))

    def _exchange(self, host: Host, line: str) -> None:
        limit = {"slow": 1, "breaks": 1, "dead": 0}.get(line, 1_000)
        agent_hears(self.world, host, limit, repeat=line == "repeats")
        progress(host)
        if not host.frozen:
            self.do(agent_says(host))
        hub_hears(self.world, host, limit, repeat=line == "repeats", swap=line == "swaps")
        if line == "breaks":
            self.world.drop(host, noticed=False)

    @rule(first=ACTS, at=st.integers(1, 20), second=ACTS, n=CONTROLLERS, name=NAMES, h=HOSTS)
    def interleave(self, first: str, at: int, second: str, n: int, name: str, h: int) -> None:
        """One action happens in the middle of another."""
        ends_term = second == "take_over" and first.startswith("step")
        self.do(
            self.world.interleave(self._act(first, n, name, h), at, self._act(second, n, name, h), ends_term=ends_term)
        )

    @rule(
        name=NAMES, fields=SPECS, part=PARTS, at=st.integers(1, 14), h=HOSTS, n=CONTROLLERS,
        second=st.sampled_from(["take_over", "take_over", "delete", "delete", "stop", "cordon"]),
    )  # fmt: skip
    def midway(self, name: str, fields: dict[str, Any], part: str, at: int, h: int, n: int, second: str) -> None:
        """In the middle of a step the leader loses its lease, or the work is no longer wanted."""
        self.apply(name, fields)
        self.do(self.world.check_bounds())  # the next look may be after a stop: what is made until then is wanted now
        if part == "step_placement":
            self.do(self.world.attempt(self._leader().step_instances))
        self.interleave(part, at, second, n, name, h)

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

    @rule(h=HOSTS, line=LINES, noticed=st.booleans())
    def talk(self, h: int, line: str, noticed: bool) -> None:
        """Messages cross or stay on their way; then the connection may break."""
        self._exchange(self.host(h), line)
        if line == "dead":
            self.world.drop(self.host(h), noticed=noticed)

    @rule(h=HOSTS, n=CONTROLLERS, pick=PICKS, what=st.sampled_from(["dial", "greet", "greet", "arrive", "replay"]))
    def late(self, h: int, n: int, pick: int, what: str) -> None:
        """A hello is abandoned or comes late, messages of a broken connection arrive, or an old command comes again."""
        world, host = self.world, self.host(h)
        match what:
            case "dial" if host.journal is not None and not host.frozen and host.worker_id is not None:
                world.abandon_hello(host)
                self.do(self._connect(host, n))
            case "greet" if world.dials:
                self.do(world.shake_late(pick, world.controllers[n]))
            case "arrive" if world.late:
                self.do(world.arrive_late(pick, lambda link: hub_hears_late(world, link, pick)))
            case "replay":
                replay(world, host, pick)

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

    @rule(h=HOSTS, what=st.sampled_from(["restart", "stop", "freeze", "power", "power"]), noticed=st.booleans())
    def trouble(self, h: int, what: str, noticed: bool) -> None:
        """The agent is restarted, killed, suspended or continued; the host loses power or gets it back."""
        host = self.host(h)
        if what == "freeze" and not host.frozen:
            host.frozen = host.journal is not None
            return
        self.world.drop(host, noticed=noticed)
        match what:
            case "freeze":
                host.thaw()
            case "restart" | "stop" if host.powered:
                host.stop_agent()
                if what == "restart":
                    host.start_agent()
                    self.bench.tally["agents restarted"] += 1
            case "power" if host.powered:
                host.power_off()
            case "power":
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

    # Relocations and claims without the scheduler, and time

    @rule(pick=PICKS, also=st.booleans())
    def move(self, pick: int, also: bool) -> None:
        self.do(request_relocations(self.world, pick, also=also))

    @rule(restart=st.sampled_from(["always", "never"]), preempt=st.booleans())
    def gang(self, restart: str, preempt: bool) -> None:
        """More GPUs than a host has, so that it needs two."""
        resources = {"gpus": 4, "gpu_memory": "10GiB", "max_workers": 2}
        self.apply("gang", {"restart": restart, "resources": resources, "priority": 150, "preempt": preempt})
        self.do(self.world.attempt(self._leader().step_instances))
        self.do(self.world.attempt(self._leader().step_placement))
        self.do(count_gangs(self.world))

    @rule(pick=PICKS, mib=st.sampled_from([0, 4 * GIB, 24 * GIB, 41 * GIB]))
    def claim(self, pick: int, mib: int) -> None:
        self.do(insert_claim(self.world, pick, mib))

    @rule(seconds=st.sampled_from([1, 6, 16, 30, 70, 200]))
    def pass_time(self, seconds: int) -> None:
        self.do(pass_time(self.world, seconds))
