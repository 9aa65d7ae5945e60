"""Adoption after a loss of commits: the ledger takes back running processes that it does not know. Pure.

A receipt with a higher epoch proves that all earlier starts of its instance have ended: no start is ordered before.
Other instances do not run only where their workers' agents have reported their processes, and no start was sent since.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from controller.decide.instances.replicas import wanted_replicas
from controller.domain.adoption import Adopted, AdoptionPlan, DeviceRoom, HeldClaim, NotAdopted, OrphanProcess
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import FINAL, LIVE, PHASE_OF_STATE, InstancePhase

P = InstancePhase
_LEAVING = (P.STOPPING, P.REPLACED)
_STATE_ORDER = ("starting", "unhealthy", "running")  # a gang is as far as its slowest rank


def plan_adoption(
    orphans: Iterable[OrphanProcess],
    deployments: Mapping[str, DeploymentSnapshot],
    devices: Mapping[str, DeviceRoom],
    *,
    owners: Mapping[str, str],
    reporting: Collection[str],
) -> AdoptionPlan:
    """Decides on all orphans.

    Args:
        orphans: processes that run and are not in the ledger.
        deployments: of the orphans and of holders of claims on their devices, by uid.
        devices: that the orphans use, by UUID.
        owners: uid of the deployment of each instance in the ledger that has the name of an orphan.
        reporting: ids of the workers whose agents have reported their processes, if none was started since; else empty.
    """
    return _Adoption(deployments, devices, owners, frozenset(reporting)).plan(orphans)


class _RefusedError(Exception):
    """Why a start is not adopted."""


@dataclass(slots=True)
class _Replicas:
    """The replicas of one deployment. Idle replicas have no process; their ids are in order."""

    number: int  # of all that count
    without_claims: dict[str, None]  # idle
    with_claims: dict[str, None]  # idle

    def settle(self, instance: str) -> None:
        """From now on it yields to no other replica."""
        self.without_claims.pop(instance, None)
        self.with_claims.pop(instance, None)


class _Adoption:
    """One decision, with the claims that it has given away so far."""

    def __init__(
        self,
        deployments: Mapping[str, DeploymentSnapshot],
        devices: Mapping[str, DeviceRoom],
        owners: Mapping[str, str],
        reporting: frozenset[str],
    ) -> None:
        self._deployments = deployments
        self._devices = dict(devices)
        self._owners = owners
        self._reporting = reporting
        self._instances = {i.id: (i, snapshot) for snapshot in deployments.values() for i in snapshot.instances}
        self._replicas = {uid: self._replicas_of(snapshot) for uid, snapshot in deployments.items()}
        self._removed: set[str] = set()
        self._taken: set[str] = set()  # instances that are adopted
        self._freed = False  # claims were freed in this round

    def plan(self, processes: Iterable[OrphanProcess]) -> AdoptionPlan:
        """Starts of instances in the ledger come first: their old claims are freed. Then running starts, the oldest."""
        starts: defaultdict[tuple[str, int], list[OrphanProcess]] = defaultdict(list)
        for process in processes:
            starts[process.receipt.instance, process.receipt.epoch].append(process)
        groups = [sorted(ranks, key=lambda p: p.receipt.rank) for ranks in starts.values()]
        undecided = sum(len(ranks) for ranks in groups if not all(p.ready for p in ranks))
        undecided_starts = [tuple(ranks) for ranks in sorted(groups, key=self._order) if all(p.ready for p in ranks)]
        adopted: list[Adopted] = []
        refused: list[NotAdopted] = []
        self._freed = True
        while self._freed:  # a device that was held before may be free now
            self._freed, refused = False, []
            for ranks in undecided_starts:
                try:
                    adopted.append(self._adopt(ranks))
                except _RefusedError as why:
                    refused.append(NotAdopted(ranks, str(why)))
            undecided_starts = [one.ranks for one in refused]
        return AdoptionPlan(tuple(adopted), tuple(refused), undecided)

    def _order(self, ranks: Sequence[OrphanProcess]) -> tuple[bool, bool, float, str, int]:
        receipt = ranks[0].receipt
        runs = all(process.state == "running" for process in ranks)
        unknown = receipt.instance not in self._owners
        return (unknown, not runs, receipt.created_at.timestamp(), receipt.instance, -receipt.epoch)

    def _adopt(self, ranks: tuple[OrphanProcess, ...]) -> Adopted:
        """Adopts a start.

        Raises:
            _RefusedError: it is not wanted, or its claims do not fit.
        """
        snapshot = self._wanted(ranks)
        before = self._before(ranks, snapshot)
        own = set() if before is None else {before.id}
        removed = self._removed_for(ranks, own or self._yielding(snapshot, ranks)) - own
        for instance in removed:
            self._remove(instance)
        self._freed = self._freed or bool(removed) or before is not None
        self._take(ranks, before)
        phase = PHASE_OF_STATE[min((p.state for p in ranks), key=_STATE_ORDER.index)]
        return Adopted(ranks, phase, before, tuple(sorted(removed)))

    def _wanted(self, ranks: Sequence[OrphanProcess]) -> DeploymentSnapshot:
        """The deployment of a start, which wants the revision that it runs."""
        receipt = ranks[0].receipt
        snapshot = self._deployments.get(receipt.deployment_uid)
        if snapshot is None or snapshot.deleted_at is not None:
            raise _RefusedError("its deployment does not exist")
        rollout = None if snapshot.rollout is None else snapshot.rollout.record
        stable = rollout.stable if rollout is not None and rollout.holds else None
        if receipt.revision not in (snapshot.revision, stable):
            raise _RefusedError("its deployment has another specification")
        if [p.receipt.rank for p in ranks] != list(range(receipt.ranks)):
            raise _RefusedError("not all of its processes run")
        if len({p.receipt.worker_id for p in ranks}) != len(ranks):
            raise _RefusedError("two of its processes are on one worker")
        if any(p.state not in PHASE_OF_STATE for p in ranks):
            raise _RefusedError("it is stopping")
        if receipt.instance in self._taken:
            raise _RefusedError("a later start of it runs")
        return snapshot

    def _before(self, ranks: Sequence[OrphanProcess], snapshot: DeploymentSnapshot) -> InstanceState | None:
        """The instance in the ledger; None if it is unknown there."""
        receipt = ranks[0].receipt
        owner = self._owners.get(receipt.instance)
        if owner is None:
            return None
        before = snapshot.by_id.get(receipt.instance)
        if before is None:
            raise _RefusedError("its name is another deployment's")
        if before.id in self._removed:
            raise _RefusedError("another replica runs in its place")
        if before.phase in FINAL or before.phase in _LEAVING:
            raise _RefusedError(f"it is {before.phase}")
        if before.epoch >= receipt.epoch:
            raise _RefusedError("the ledger has a later start of it")
        if any(p.state != "exited" and p.worker_id in self._reporting for p in before.processes):
            raise _RefusedError("another start of it runs")
        return before

    def _replicas_of(self, snapshot: DeploymentSnapshot) -> _Replicas:
        counted = [i for i in sorted(snapshot.instances, key=lambda i: i.id) if i.phase not in _LEAVING]
        idle = [i for i in counted if self._is_idle(i, snapshot)]
        without_claims = dict.fromkeys(i.id for i in idle if not i.claims)
        with_claims = dict.fromkeys(i.id for i in idle if i.claims)
        return _Replicas(len(counted), without_claims, with_claims)

    def _yielding(self, snapshot: DeploymentSnapshot, ranks: Sequence[OrphanProcess]) -> set[str]:
        """The replicas that yield to a further one, so that there are not more than wanted."""
        replicas = self._replicas[snapshot.uid]
        surplus = max(replicas.number + 1 - wanted_replicas(snapshot), 0)
        if surplus > len(replicas.without_claims) + len(replicas.with_claims):
            raise _RefusedError("no further replica is wanted")
        rooms = [self._devices.get(claim.device) for p in ranks for claim in p.receipt.claims]
        on_its_devices = {held.instance for room in rooms if room is not None for held in room.claims}
        in_the_way = sorted(on_its_devices & replicas.with_claims.keys())
        elsewhere = (id_ for id_ in replicas.with_claims if id_ not in on_its_devices)
        return set(islice(chain(replicas.without_claims, in_the_way, elsewhere), surplus))

    def _is_idle(self, instance: InstanceState, snapshot: DeploymentSnapshot) -> bool:
        """Whether it certainly has no process, and another may take its place without loss of work."""
        if instance.phase in (P.PENDING, P.ANALYZING):
            return not instance.claims
        leaves = instance.phase in _LEAVING
        repeatable = snapshot.revisions[instance.revision].spec.restart == "always"  # else it may have done its work
        return (
            (leaves or (instance.phase in LIVE | {P.UNREACHABLE} and repeatable))
            and bool(instance.claims)
            and all(claim.worker_id in self._reporting for claim in instance.claims)
            and all(process.state == "exited" for process in instance.processes)
        )

    def _removed_for(self, ranks: Sequence[OrphanProcess], yielding: set[str]) -> set[str]:
        """The yielding replicas, and further idle instances that must go for the claims to fit."""
        gone = set(yielding)
        for process in ranks:
            for claim in process.receipt.claims:
                room = self._devices.get(claim.device)
                if room is None or room.worker_id != process.receipt.worker_id:
                    raise _RefusedError(f"its device {claim.device} is not on its worker any more")
                while not room.has(claim, frozenset(gone)):
                    gone.add(self._in_the_way(claim.device, room, gone))
        return gone

    def _in_the_way(self, device: str, room: DeviceRoom, gone: Collection[str]) -> str:
        for held in sorted(room.claims, key=lambda c: c.instance):
            known = self._instances.get(held.instance)
            if known is None or held.instance in gone or held.instance in self._taken:
                continue
            if self._is_idle(*known):
                return held.instance
        raise _RefusedError(f"its device {device} cannot be used or is held by others")

    def _remove(self, instance: str) -> None:
        self._removed.add(instance)
        known, snapshot = self._instances[instance]
        self._drop_claims(known)
        self._replicas[snapshot.uid].settle(instance)
        self._replicas[snapshot.uid].number -= known.phase not in _LEAVING

    def _take(self, ranks: Sequence[OrphanProcess], before: InstanceState | None) -> None:
        """Replaces its earlier claims."""
        receipt = ranks[0].receipt
        self._taken.add(receipt.instance)
        replicas = self._replicas[receipt.deployment_uid]
        replicas.settle(receipt.instance)
        if before is None:
            replicas.number += 1
        else:
            self._drop_claims(before)
        for process in ranks:
            for claim in process.receipt.claims:
                room = self._devices[claim.device]
                mine = HeldClaim(receipt.instance, claim.memory_mib, claim.cpu_milli, claim.exclusive)
                self._devices[claim.device] = replace(room, claims=(*room.claims, mine))

    def _drop_claims(self, instance: InstanceState) -> None:
        for device in {claim.device for claim in instance.claims} & self._devices.keys():
            room = self._devices[device]
            kept = tuple(c for c in room.claims if c.instance != instance.id)
            self._devices[device] = replace(room, claims=kept)
