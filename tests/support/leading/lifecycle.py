"""A deployment's whole lifecycle as a list of acts, and the world that they run in, for tests that disturb it.

After each act the world settles. Its picture then must not depend on the disturbances in between.
"""

import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.domain.phases import INSTANCE_EDGES, InstancePhase
from controller.domain.restart_delays import RestartSettings
from controller.domain.workers import WorkerSettings
from controller.leader.housekeeping import Housekeeping
from controller.reconcilers.cancelling import CancellingReconciler
from controller.reconcilers.workers import ALL, WorkersReconciler
from controller.runtime.clock import SystemClock
from controller.store.access.secrets import put_secret
from controller.store.core.database import Database
from controller.store.core.ledger_audit import audit
from controller.store.deployments import verbs
from controller.store.workers import maintenance
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.database.ledger import Host, add_host, rows
from support.leading.leader_term import LeaderTerm
from support.standins.hosts_by_hand import Hosts, as_text, set_heartbeat

RESTARTS = RestartSettings(base_s=0.0, cap_s=0.0, stable_after_s=0.0)
_EMPTY = """
    delete from claims; delete from commands; delete from processes; delete from instances; delete from revisions;
    delete from intents; delete from deployments; delete from events; delete from worker_liveness;
    delete from devices; delete from workers"""
# What must be equal whatever happened on the way. Random names, and which of equals got which GPU, are left out.
_PICTURE = {
    "deployments": """select name, generation, revision, phase, reason, message, ready, observed_generation,
                             deleted_at is not null as deleted from deployments order by name, revision""",
    "instances": """select d.name, i.revision, i.phase, i.reason, i.epoch,
                           regexp_replace(i.message, '^[a-z]+-[a-z2-9]{8} ', 'ID ') as message, i.restarts, i.failures,
                           i.replaces is not null as replaces, count(c.device) as claims,
                           count(c.device) filter (where c.exclusive) as exclusive, sum(c.memory_mib) as memory_mib
                      from instances i join deployments d on d.uid = i.deployment_uid
                      left join claims c on c.instance_id = i.id
                     group by i.id, d.name order by 1, 2, 3, 5, i.restarts, replaces""",
    "rollouts": """select d.name, o.revision, o.stable, o.state, o.attempt, o.available
                     from rollouts o join deployments d on d.uid = o.deployment_uid order by d.name""",
    "workers": "select name, phase, reason, cordoned, draining from workers order by name",
    "orders": """select d.name, c.verb, c.epoch, c.state, count(*) from commands c
                   join instances i on i.id = c.instance_id join deployments d on d.uid = i.deployment_uid
                  group by 1, 2, 3, 4 order by 1, 2, 3, 4""",
    "events": "select reason, count(*) from events group by reason order by reason",
}
# One figure over everything that a reconciler writes.
_TRACE = """
    select md5(concat(
        (select string_agg(d::text, '|' order by uid) from deployments d),
        (select string_agg(r::text, '|' order by deployment_uid, generation) from revisions r),
        (select string_agg(i::text, '|' order by id) from instances i),
        (select string_agg(c::text, '|' order by device, instance_id) from claims c),
        (select string_agg(m::text, '|' order by id) from commands m),
        (select string_agg(w::text, '|' order by id) from workers w), (select count(*) from events)))"""


# Hosts played by hand send one message: a connected one counts as heard for the whole test.
PATIENT = WorkerSettings(unreachable_after_s=3600)


class Crew(LeaderTerm):
    """All reconcilers of one term, with housekeeping."""

    def __init__(self, db: Database, term: int) -> None:
        super().__init__(db, term, RESTARTS)
        self.term = term
        self.workers = WorkersReconciler(db, term, healthy_for_s=lambda: 1e9, settings=PATIENT)
        self.cancelling = CancellingReconciler(db, self.analyses)
        self.housekeeping = Housekeeping(
            db, term, SystemClock(), audit_every_s=60, keep_events_days=1, keep_actions_days=1
        )

    @classmethod
    async def begin(cls, db: Database, **fields: Any) -> "Crew":
        """Acquires the lease, as if it had listened for long, so that silence counts at once."""
        async with db.transaction() as connection:
            term = await connection.fetchval(
                """update lease set term = term + 1, holder = 'test', acquired_at = now() - interval '1 day'
                returning term"""
            )
        return cls(db, term, **fields)

    async def step_workers(self) -> None:
        await self.workers.step([ALL])

    async def step_cancelling(self) -> None:
        # Of all, so that the read is passed even without an analysis.
        await self.cancelling.step(sorted(await self.instances.list_keys()))

    async def step_instances(self) -> None:
        await self.instances.step(sorted(await self.instances.list_keys()))

    async def step_placement(self) -> None:
        await self.placement.step(list(await self.placement.list_keys()))

    async def keep_house(self) -> None:
        await self.housekeeping.round()

    @property
    def steps(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """One step of each reconciler, in the order of the tests."""
        return (self.step_workers, self.step_cancelling, self.step_instances, self.step_placement)


@dataclass
class World:
    """An empty database with three hosts, and what runs on them."""

    db: Database
    hosts: Hosts
    workers: dict[str, Host] = field(default_factory=dict)
    tolerated: set[str] = field(default_factory=set)  # invariants that a test breaks on purpose
    _phases: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    async def make(cls, db: Database) -> "World":
        async with db.connection() as connection:
            await connection.execute(_EMPTY)
        world = cls(db, Hosts(db))
        for name in ("w1", "w2", "w3"):
            world.workers[name] = await add_host(db, name, gpus=3, phase="joining")
            await set_heartbeat(db, world.workers[name].id)
        return world

    async def apply(self, name: str, **fields: Any) -> None:
        spec = DeploymentSpec.model_validate({"engine": "simulated", **fields})
        await apply_spec(self.db, name, spec)

    async def instances(self, name: str, phase: str = "running") -> list[str]:
        """The ids of a deployment's instances in a phase, oldest first."""
        query = """select i.id from instances i join deployments d on d.uid = i.deployment_uid
                    where d.name = $1 and i.phase = $2 order by i.created_at, i.id"""
        return [row["id"] for row in await rows(self.db, query, name, phase)]

    async def trace(self) -> str:
        """A figure that changes with every write of a reconciler."""
        async with self.db.connection() as connection:
            return str(await connection.fetchval(_TRACE))

    async def picture(self) -> dict[str, str]:
        """The state of the world, without what led to it."""
        async with self.db.snapshot() as connection:
            return {
                part: "\n".join(as_text(dict(row)) for row in await connection.fetch(query))
                for part, query in _PICTURE.items()
            }

    async def check(self) -> None:
        """Checks the invariants, that phases took legal edges (or several at once), and that no epoch fell."""
        async with self.db.snapshot() as connection:
            result = await audit(connection)
        broken = [v for v in result.violations if v.invariant not in self.tolerated]
        assert not broken, broken
        seen = await rows(self.db, "select id, phase, epoch from instances")
        for row in seen:
            phase, epoch = self._phases.get(row["id"], (row["phase"], row["epoch"]))
            assert row["epoch"] >= epoch, f"the epoch of {row['id']} fell from {epoch} to {row['epoch']}"
            legal = _reachable(phase)
            assert row["phase"] in legal, f"{row['id']} went from {phase} to {row['phase']}"
        self._phases = {row["id"]: (row["phase"], row["epoch"]) for row in seen}


def differences(found: Sequence[dict[str, str]], wanted: Sequence[dict[str, str]]) -> list[str]:
    """The lines that differ between pictures: `-` expected, `+` found."""
    assert len(found) == len(wanted)
    return [
        f"{n} {part}: {line}"
        for n, (one, other) in enumerate(zip(found, wanted, strict=True))
        for part in other
        for line in difflib.ndiff(other[part].splitlines(), one[part].splitlines())
        if line[0] in "+-"
    ]


def _reachable(phase: str) -> set[str]:
    found, edge = {phase}, [phase]
    while edge:
        for target in INSTANCE_EDGES[InstancePhase(edge.pop())]:
            if target.value not in found:
                found.add(target.value)
                edge.append(target.value)
    return found


@dataclass(frozen=True)
class Act:
    """One action from outside, after which the world settles."""

    name: str
    do: Callable[[World], Awaitable[Any]]


async def _apply(world: World) -> None:
    await world.apply("whole", replicas=2, resources={"gpus": 1})
    await world.apply("shared", resources={"gpus": 1, "gpu_memory": "10GiB"})
    await world.apply("huge", resources={"gpus": 7})


async def _apply_slow(world: World) -> None:
    await world.apply("slow", args={"analysis_seconds": 0.1, "memory": "10GiB"})


async def _change_slow(world: World) -> None:
    await world.apply("slow", args={"analysis_seconds": 0.1, "memory": "20GiB"})


async def _exit(world: World) -> None:
    await world.hosts.end((await world.instances("whole"))[0], 1)


async def _fail_thrice(world: World) -> None:
    world.hosts.behaviours["shared"] = ["exit", "exit"]
    await world.hosts.end((await world.instances("shared"))[0], 1)


async def _refuse(world: World) -> None:
    world.hosts.behaviours["late"] = ["refuse"]
    await world.apply("late", resources={"gpus": 1, "gpu_memory": "30GiB"})


async def _unsent(world: World) -> None:
    world.hosts.away = True
    await world.apply("unsent", resources={"gpus": 1})


async def _delete_unsent(world: World) -> None:
    await verbs.delete(world.db, "unsent")


async def _change(world: World) -> None:
    world.hosts.away = False
    await world.apply("whole", replicas=2, resources={"gpus": 2})


async def _drain(world: World) -> None:
    await maintenance.set_maintenance(world.db, "w1", "drain")


async def _uncordon(world: World) -> None:
    await maintenance.set_maintenance(world.db, "w1", "uncordon")


async def _fall_silent(world: World) -> None:
    """Silences the host that took over from the drained one, so that something must be replaced."""
    await set_heartbeat(world.db, world.workers["w2"].id, silent=True)


async def _return(world: World) -> None:
    await set_heartbeat(world.db, world.workers["w2"].id)


def _rolling(**fields: Any) -> Callable[[World], Awaitable[Any]]:
    spec = {"update": "rolling", "rollout": {"ready_for": 0}, "resources": {"gpus": 1, "gpu_memory": "5GiB"}, **fields}
    return lambda world: world.apply("rolling", **spec)


async def _fetch(world: World) -> None:
    world.hosts.behaviours["fetched"] = ["fetch"]
    await world.apply("fetched", resources={"gpus": 1, "gpu_memory": "5GiB"})


async def _is_fetched(world: World) -> None:
    await world.hosts.fetched((await world.instances("fetched", "starting"))[0])


async def _delete_all(world: World) -> None:
    for name in ("whole", "shared", "huge", "late", "rolling"):
        await verbs.delete(world.db, name)


ACTS: Sequence[Act] = (
    Act("apply", _apply),
    Act("exit", _exit),
    Act("fail_thrice", _fail_thrice),
    Act("scale_up", lambda w: verbs.scale(w.db, "whole", 4, 4)),
    Act("scale_down", lambda w: verbs.scale(w.db, "whole", 2, 2)),
    Act("stop", lambda w: verbs.stop(w.db, "shared")),
    Act("start", lambda w: verbs.start(w.db, "shared")),
    Act("refuse", _refuse),
    Act("unsent", _unsent),
    Act("delete_unsent", _delete_unsent),
    Act("change", _change),
    Act("drain", _drain),
    Act("uncordon", _uncordon),
    Act("fall_silent", _fall_silent),
    Act("return", _return),
    Act("roll_out", _rolling()),
    Act("roll_on", _rolling(args={"load_seconds": 0.1})),
    Act("restart_rolling", lambda w: verbs.restart(w.db, "rolling")),
    Act("roll_no_more", _rolling(args={"load_seconds": 0.1}, update="recreate")),
    Act("restart", lambda w: verbs.restart(w.db, "whole")),
    Act("fetch", _fetch),
    Act("is_fetched", _is_fetched),
    Act("delete_fetched", lambda w: verbs.delete(w.db, "fetched")),
    Act("delete_all", _delete_all),
)
ANALYSED: Sequence[Act] = (
    Act("apply_slow", _apply_slow),
    Act("change_slow", _change_slow),
    Act("delete_slow", lambda w: verbs.delete(w.db, "slow")),
)
WITH_SECRET = {"TOKEN": {"secret": "token"}}
# Nine GPUs are claimed; a preempted instance gets its GPU back in the end.
PREEMPTED: Sequence[Act] = (
    Act("fill", lambda w: w.apply("low", replicas=9, resources={"gpus": 1})),
    Act("set_secret", lambda w: put_secret(w.db, "token", "of the preemptor")),
    Act("preempt", lambda w: w.apply("high", priority=900, preempt=True, resources={"gpus": 1}, env=WITH_SECRET)),
    Act("end_preemptor", lambda w: verbs.delete(w.db, "high")),
)
