"""Objects as watchers get them, each encoded once, and the updates from one read to the next. Reads no rows."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import replace

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.live.change_fanout import Changes
from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.policies import PolicyView
from schemas.api.view import to_json
from schemas.api.workers import WorkerView

LISTS: Final[Mapping[str, str]] = {
    "Deployment": "deployments",
    "Instance": "instances",
    "Worker": "workers",
    "UtilizationPolicy": "policies",
}
DEFAULT_KINDS: Final = frozenset({"deployments", "instances", "workers"})
SWEPT: Final = 50  # objects of a kind that a sweep reads again
_DEPLOYMENT_KINDS: Final = ("deployment", "status", "process", "wake")
_QUARANTINED: Final = "quarantined"  # this state and this condition of a worker end with the database's clock
_SAMPLES_DROPPED: Final = "TelemetryComplete"
K = TypeVar("K")
V = TypeVar("V")

Key = tuple[str, str]  # kind, uid
View = DeploymentView | InstanceView | WorkerView | PolicyView


@dataclass(frozen=True, slots=True)
class Wanted:
    """The objects that a watcher requests."""

    kinds: frozenset[str] = DEFAULT_KINDS  # values of `LISTS`
    deployment: str | None = None  # only this deployment and its instances; None: all

    def has(self, kind: str, deployment: str) -> bool:
        """`deployment`: name of the object's deployment, if it has one."""
        if LISTS[kind] not in self.kinds:
            return False
        return self.deployment is None or kind not in ("Deployment", "Instance") or deployment == self.deployment


@dataclass(frozen=True, slots=True)
class Shown:
    """An object as it was last read."""

    kind: str
    uid: str
    name: str
    owner: str  # uid of the deployment whose read covers it; else its own uid
    deployment: str  # name of its deployment; else empty
    body: bytes  # JSON
    mark: bytes  # differs where the object has changed for watchers
    claims: frozenset[tuple[str, str, int, int]] = frozenset()  # an instance's: each device with its worker's name
    by_clock: bool = False  # it changes with time alone


def shown(view: View, redaction: Redaction = NOTHING_REDACTED) -> Shown:
    body = redaction.shown(to_json(view))
    owner, deployment, mark = view.uid, "", body
    claims: frozenset[tuple[str, str, int, int]] = frozenset()
    by_clock = False
    match view:
        case DeploymentView():
            deployment = view.name
            by_clock = view.status.scaling is not None and view.status.scaling.awake_until is not None
        case InstanceView():
            owner, deployment = view.spec.deployment_uid, view.spec.deployment
            claims = frozenset((c.worker, c.device, c.epoch, c.memory_mib) for c in view.status.claims)
        case WorkerView():
            dropped = any(condition.type == _SAMPLES_DROPPED for condition in view.status.conditions)
            by_clock = dropped or view.status.state == _QUARANTINED
            if view.status.connected:  # a changed `last_seen` alone, as by a heartbeat, makes no update
                mark = _without(view, last_seen=None)
        case PolicyView():  # while an action lasts, the seconds that it freed grow with the clock
            mark = _without(view, gpu_seconds_freed=0.0)
    return Shown(view.kind, view.uid, view.name, owner, deployment, body, mark, claims, by_clock)


def _without(view: WorkerView | PolicyView, **parts: Any) -> bytes:
    return to_json(replace(view, status=replace(view.status, **parts)))


@dataclass(frozen=True, slots=True)
class Update:
    """One `changed` or `gone` message, as JSON."""

    kind: str
    deployment: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """The updates of one read, each encoded once for all watchers."""

    updates: tuple[Update, ...]
    _frames: dict[Wanted, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(update.message) for update in self.updates)

    def messages(self, wanted: Wanted) -> list[bytes]:
        return [update.message for update in self.updates if wanted.has(update.kind, update.deployment)]

    def frames(self, wanted: Wanted) -> bytes:
        """`messages` as server-sent events; may be empty."""
        if wanted not in self._frames:
            self._frames[wanted] = b"".join(map(frame, self.messages(wanted)))
        return self._frames[wanted]


def frame(message: bytes) -> bytes:
    """The server-sent event of a message, named by its `type`."""
    kind = message.split(b'"', 4)[3]
    return b"event: %b\ndata: %b\n\n" % (kind, message)


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects of a read: everything, or some deployments with their instances, some workers, and the policies."""

    everything: bool = False
    deployments: frozenset[str] = frozenset()
    workers: frozenset[str] = frozenset()
    policies: bool = False

    @classmethod
    def of(cls, changes: Changes) -> "Scope":
        deployments, workers = changes.of(*_DEPLOYMENT_KINDS), changes.of("worker")
        return cls(changes.resync, deployments, workers, policies=bool(changes.of("policy")))

    def __or__(self, other: "Scope") -> "Scope":
        return Scope(
            self.everything or other.everything,
            self.deployments | other.deployments,
            self.workers | other.workers,
            self.policies or other.policies,
        )

    def __bool__(self) -> bool:
        return self.everything or self.policies or bool(self.deployments or self.workers)


class Objects:
    """All objects as they were last read."""

    def __init__(self) -> None:
        self._objects: dict[Key, Shown] = {}
        self._of_owner: dict[tuple[bool, str], set[Key]] = defaultdict(set)
        self._workers: dict[str, set[str]] = defaultdict(set)  # uids by name: a deleted worker may have claims left
        self._by_clock: set[Key] = set()
        self._round: deque[Key] = deque()

    def snapshot(self, wanted: Wanted) -> bytes:
        """The message of all wanted objects."""
        lists: dict[str, list[bytes]] = {name: [] for name in LISTS.values() if name in wanted.kinds}
        for known in self._objects.values():
            if wanted.has(known.kind, known.deployment):
                lists[LISTS[known.kind]].append(known.body)
        parts = (b'"%b":[%b]' % (name.encode(), b",".join(bodies)) for name, bodies in lists.items())
        return b'{"type":"snapshot","object":{%b}}' % b",".join(parts)

    def workers_of_changed_claims(self, read: Iterable[Shown], scope: Scope) -> frozenset[str]:
        """The workers on which claims of instances have changed, and with them the workers' sums."""
        before = {known.uid: known.claims for known in self._covered(scope) if known.kind == "Instance"}
        after = {new.uid: new.claims for new in read if new.kind == "Instance"}
        names: set[str] = set()
        for uid in before.keys() | after.keys():
            changed = before.get(uid, frozenset()) ^ after.get(uid, frozenset())
            names.update(worker for worker, *_ in changed)
        return frozenset(uid for name in names for uid in self._workers.get(name, ()))

    def merge(self, read: Sequence[Shown], scope: Scope) -> list[Update]:
        """Stores the result of a read of this scope; returns the updates for watchers."""
        updates: list[Update] = []
        present = {(new.kind, new.uid) for new in read}
        for known in [known for known in self._covered(scope) if (known.kind, known.uid) not in present]:
            self._forget(known)
            gone = orjson.dumps({"kind": known.kind, "name": known.name, "uid": known.uid})
            updates.append(Update(known.kind, known.deployment, b'{"type":"gone","object":%b}' % gone))
        for new in read:
            before = self._objects.get((new.kind, new.uid))
            self._keep(new)
            if before is None or before.mark != new.mark:
                updates.append(Update(new.kind, new.deployment, b'{"type":"changed","object":%b}' % new.body))
        return updates

    def sweep(self) -> Scope:
        """The next few objects of a round through all, those that change with time alone, and the policies."""
        # For changes without a notification, as by another version of the controller.
        if not self._round:
            self._round.extend(key for key in self._objects if key[0] in ("Deployment", "Worker"))
        keys = {self._round.popleft() for _ in range(min(SWEPT, len(self._round)))} | self._by_clock
        return Scope(
            deployments=frozenset(uid for kind, uid in keys if kind == "Deployment"),
            workers=frozenset(uid for kind, uid in keys if kind == "Worker"),
            policies=True,
        )

    def _covered(self, scope: Scope) -> Iterator[Shown]:
        """The known objects of this scope."""
        if scope.everything:
            yield from self._objects.values()
            return
        owners = [(False, uid) for uid in scope.deployments] + [(True, uid) for uid in scope.workers]
        for owner in owners:
            for key in self._of_owner.get(owner, ()):
                yield self._objects[key]
        if scope.policies:
            yield from [known for key, known in self._objects.items() if key[0] == "UtilizationPolicy"]

    def _keep(self, new: Shown) -> None:
        key = (new.kind, new.uid)
        self._objects[key] = new
        self._of_owner[new.kind == "Worker", new.owner].add(key)
        if new.kind == "Worker":
            self._workers[new.name].add(new.uid)
        if new.by_clock:
            self._by_clock.add(key)
        else:
            self._by_clock.discard(key)

    def _forget(self, known: Shown) -> None:
        key = (known.kind, known.uid)
        del self._objects[key]
        self._by_clock.discard(key)
        _drop(self._of_owner, (known.kind == "Worker", known.owner), key)
        if known.kind == "Worker":
            _drop(self._workers, known.name, known.uid)


def _drop(index: dict[K, set[V]], at: K, value: V) -> None:
    index[at].discard(value)
    if not index[at]:
        del index[at]
