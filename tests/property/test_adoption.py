"""After a loss of commits: any restored ledger with any found processes gets no double claim and too many replicas of
nothing, and what is refused could not be adopted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from controller.decide.adoption import plan_adoption
from controller.domain.adoption import AdoptionPlan, DeviceRoom, HeldClaim, OrphanProcess
from controller.domain.instances import DeploymentSnapshot, InstanceClaim, InstanceState, ReportedProcess
from controller.domain.phases import InstancePhase
from controller.domain.placement import Layout, PlannedClaim
from controller.domain.start_receipts import StartReceipt
from support.builders.facts import NOW, deployment, host, instance, spec
from support.profiles import examples

P = InstancePhase
WORKERS = ("w0", "w1", "w2")
GPUS = tuple(f"GPU-{worker}-{n}" for worker in WORKERS for n in range(2))
MIB = 8
LEAVING = (P.STOPPING, P.REPLACED)
HOLDING = ("scheduled", "starting", "running", "unhealthy", "backoff", "unreachable", "replaced", "stopping")
amounts = st.sampled_from([2, 4, 6, MIB])  # of a GPU; all of it is exclusive


@dataclass(frozen=True)
class World:
    deployments: dict[str, DeploymentSnapshot]
    devices: dict[str, DeviceRoom]
    found: list[OrphanProcess]
    reporting: frozenset[str]

    @property
    def owners(self) -> dict[str, str]:
        return {i.id: uid for uid, facts in self.deployments.items() for i in facts.instances}

    def plan(self) -> AdoptionPlan:
        return plan_adoption(self.found, self.deployments, self.devices, owners=self.owners, reporting=self.reporting)


def gpu_claim(gpu: str, mib: int, epoch: int) -> InstanceClaim:
    return InstanceClaim(gpu, gpu.split("-")[1], "gpu", epoch, 0, mib, 0, mib == MIB, 0)


@st.composite
def ledgers(draw: st.DrawFn) -> dict[str, list[InstanceState]]:
    """Instances whose claims fit."""
    free: Counter[str] = Counter(dict.fromkeys(GPUS, MIB))
    of: dict[str, list[InstanceState]] = {"d0": [], "d1": []}
    for n in range(draw(st.integers(0, 5))):
        uid, epoch = draw(st.sampled_from(sorted(of))), draw(st.integers(1, 2))
        gpu, mib = draw(st.sampled_from(GPUS)), draw(amounts)
        if free[gpu] < mib or draw(st.booleans()):
            of[uid].append(instance(f"i{n}", draw(st.sampled_from(["pending", "analyzing", "failed"])), epoch=epoch))
            continue
        free[gpu] -= mib
        worker = gpu.split("-")[1]
        states = draw(st.lists(st.sampled_from(["running", "exited"]), max_size=1))
        processes = tuple(ReportedProcess(epoch, 0, worker, state, None, None, "") for state in states)  # type: ignore[arg-type]
        one = instance(f"i{n}", draw(st.sampled_from(HOLDING)), epoch=epoch, claims=(gpu_claim(gpu, mib, epoch),))
        of[uid].append(InstanceState(**{**fields(one), "processes": processes}))
    return of


def fields(one: InstanceState) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


@st.composite
def starts(draw: st.DrawFn, uids: list[str], names: list[str]) -> list[OrphanProcess]:
    """The processes of one start; some of a gang may be missing."""
    ranks = draw(st.sampled_from([1, 1, 1, 2]))
    workers = draw(st.permutations(WORKERS))[:ranks]
    uid = draw(st.sampled_from([*uids, "gone"]))
    name, epoch = draw(st.sampled_from([*names, "n0", "n1", "n2"])), draw(st.integers(1, 4))
    found = []
    for rank, worker in enumerate(workers):
        gpu = f"GPU-{worker}-{draw(st.integers(0, 1))}"
        mib = draw(amounts)
        receipt = StartReceipt(
            worker, name, epoch, rank, uid, draw(st.sampled_from([1, 2, 2, 2])),
            NOW - timedelta(seconds=draw(st.integers(0, 3))), "", Layout(ranks, 0, exclusive=False, workers=ranks),
            (PlannedClaim(gpu, mib, 0, mib == MIB, 0, rank),),
        )  # fmt: skip
        state = draw(st.sampled_from(["running", "running", "starting", "unhealthy", "stopping"]))
        found.append(OrphanProcess(receipt, worker, draw(st.sampled_from([True, True, True, False])), {"state": state}))
    return found[: draw(st.integers(1, ranks))]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    of = draw(ledgers())
    deployments = {}
    for uid, instances in of.items():
        restart = draw(st.sampled_from(["always", "always", "never"]))
        deployments[uid] = deployment(
            *instances,
            uid=uid,
            revision=2,
            spec=spec(replicas=draw(st.integers(0, 3)), restart=restart),
            deleted_at=draw(st.sampled_from([None, None, None, NOW])),
            hosts=tuple(host(worker) for worker in WORKERS),
        )
    claims: defaultdict[str, list[HeldClaim]] = defaultdict(list)
    for one in (i for instances in of.values() for i in instances):
        for c in one.claims:
            claims[c.device].append(HeldClaim(one.id, c.memory_mib, c.cpu_milli, c.exclusive))
    devices = {
        gpu: DeviceRoom(
            gpu.split("-")[1], True, draw(st.sampled_from([True, True, True, False])), MIB, 0, 0, tuple(claims[gpu])
        )
        for gpu in GPUS
    }
    names = [i.id for instances in of.values() for i in instances]
    found = {}
    for one in draw(st.lists(starts(sorted(of), names), max_size=5)):
        for process in one:
            found[process.receipt.key] = process  # the table has each process once
    reporting = frozenset(draw(st.sets(st.sampled_from(WORKERS))))
    return World(deployments, devices, list(found.values()), reporting)


def is_idle(world: World, one: InstanceState, facts: DeploymentSnapshot) -> bool:
    """Nothing of it runs, for certain, and it leaves anyway or is not a task."""
    if one.phase in (P.PENDING, P.ANALYZING):
        return True
    if one.phase not in map(P, HOLDING):
        return False
    ended = all(p.state == "exited" for p in one.processes) and {c.worker_id for c in one.claims} <= world.reporting
    return ended and (one.phase in LEAVING or facts.spec.restart == "always")


class After:
    """The ledger with the plan carried out."""

    def __init__(self, world: World, plan: AdoptionPlan) -> None:
        self.world = world
        self.removed = {id_ for one in plan.adopted for id_ in one.removed}
        self.adopted = {one.receipt.instance: one for one in plan.adopted}
        self.claims: defaultdict[str, list[HeldClaim]] = defaultdict(list)
        for uuid, room in world.devices.items():
            self.claims[uuid] += [c for c in room.claims if c.instance not in self.removed | self.adopted.keys()]
        for one in plan.adopted:
            for claim in (c for p in one.ranks for c in p.receipt.claims):
                held = HeldClaim(one.receipt.instance, claim.memory_mib, claim.cpu_milli, claim.exclusive)
                self.claims[claim.device].append(held)

    def replicas(self, facts: DeploymentSnapshot) -> set[str]:
        staying = {i.id for i in facts.instances if i.phase not in LEAVING} - self.removed
        return staying | {id_ for id_, one in self.adopted.items() if one.receipt.deployment_uid == facts.uid}

    def idle(self) -> set[str]:
        """Of which nothing runs, and which stayed."""
        return {
            i.id
            for facts in self.world.deployments.values()
            for i in facts.instances
            if is_idle(self.world, i, facts) and i.id not in self.removed | self.adopted.keys()
        }

    def could_adopt(self, ranks: Sequence[OrphanProcess]) -> bool:
        """By a plainer rule: whether it is wanted, and fits once all that is idle is gone."""
        receipt = ranks[0].receipt
        facts = self.world.deployments.get(receipt.deployment_uid)
        whole = len(ranks) == receipt.ranks == len({p.receipt.worker_id for p in ranks})
        runs = whole and all(p.state != "stopping" for p in ranks) and receipt.instance not in self.adopted
        if facts is None or facts.deleted_at or receipt.revision != 2 or not runs:
            return False
        return self.is_wanted(receipt, facts) and self.fits(ranks)

    def is_wanted(self, receipt: StartReceipt, facts: DeploymentSnapshot) -> bool:
        if receipt.instance not in self.world.owners:
            others = self.replicas(facts) - self.idle()
            return len(others) < facts.spec.replica_bounds[1]
        before = next((i for i in facts.instances if i.id == receipt.instance), None)
        if before is None or before.id in self.removed or before.phase in (*LEAVING, P.FAILED):
            return False
        runs = any(p.state != "exited" and p.worker_id in self.world.reporting for p in before.processes)
        return before.epoch < receipt.epoch and not runs

    def fits(self, ranks: Iterable[OrphanProcess]) -> bool:
        for process, claim in ((p, c) for p in ranks for c in p.receipt.claims):
            room = self.world.devices[claim.device]
            gone = self.idle() | {process.receipt.instance}
            held = [c for c in self.claims[claim.device] if c.instance not in gone]
            alone = not held or not (claim.exclusive or any(c.exclusive for c in held))
            if not (room.usable and alone and sum(c.memory_mib for c in held) + claim.memory_mib <= room.memory_mib):
                return False
        return True


@given(worlds())
@examples()
def test_nothing_is_owned_twice_and_nothing_wanted_is_refused(world: World) -> None:
    plan = world.plan()
    after = After(world, plan)
    for uuid, claims in after.claims.items():
        assert sum(c.memory_mib for c in claims) <= world.devices[uuid].memory_mib, uuid
        assert not any(c.exclusive for c in claims) or len(claims) == 1, uuid
    by_id = {i.id: (i, facts) for facts in world.deployments.values() for i in facts.instances}
    for one in plan.adopted:
        facts = world.deployments[one.receipt.deployment_uid]
        assert facts.deleted_at is None
        assert one.receipt.revision == facts.revision
        assert all(p.ready and p.state != "stopping" for p in one.ranks)
        assert one.before is None or one.before.epoch < one.receipt.epoch
        assert one.receipt.instance not in after.removed
    assert len(after.adopted) == len(plan.adopted), "each instance once"
    for id_ in after.removed:
        assert is_idle(world, *by_id[id_]), id_
    for facts in world.deployments.values():
        before = sum(i.phase not in LEAVING for i in facts.instances)
        assert len(after.replicas(facts)) <= max(before, facts.spec.replica_bounds[1])
    for refused in plan.refused:
        assert not after.could_adopt(refused.ranks), refused.why
    decided = [p for one in (*plan.adopted, *plan.refused) for p in one.ranks]
    assert len(decided) + plan.undecided == len(world.found)


@given(worlds())
@examples()
def test_the_order_in_which_agents_report_decides_nothing(world: World) -> None:
    backwards = World(world.deployments, world.devices, world.found[::-1], world.reporting)
    assert world.plan() == backwards.plan()
