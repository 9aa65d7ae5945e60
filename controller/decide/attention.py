"""Attention: what needs an operator, one entry per cause, not per instance, the worst first. Pure.

A lost worker with hundreds of instances is one entry, and so is a deployment of which hundreds of instances crash. An
instance is in one entry at most.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar, get_args

from controller.domain.access.secret_scopes import SECRET_REFUSALS
from controller.domain.attention import (
    AttentionSnapshot,
    CertificateState,
    IdleInstance,
    SealingState,
    SickGpu,
    TroubledDeployment,
    TroubledInstance,
    TroubledWorker,
)
from controller.domain.devices import reason_code
from controller.domain.restart_delays import ENDED_REPEATEDLY
from schemas.api.attention import AttentionEntry, AttentionObject, Cause, Severity
from schemas.database_disk import DATABASE_DISK_LOW, DATABASE_FULL
from schemas.placement_reasons import Reason
from schemas.printing import first_of
from schemas.status_reasons import NO_LEADER, REASONS

PENDING_AFTER: Final = timedelta(seconds=60)
MAX_SUBJECTS: Final = 20
BREAKER_OPEN: Final = "breaker_open"
START_OVERDUE: Final = "start_overdue"
REFUSED: Final = "no_common_protocol"  # the condition that keeps a worker from being ready
_GATEWAYS_NAMED: Final = 5
_CRASHES: Final = 2  # failures in a row; before, it may be a single accident
_TEXTS: Final = {code: text for group in REASONS.values() for code, text in group.items()}
_CAUSES: Final[dict[Cause, int]] = {cause: place for place, cause in enumerate(get_args(Cause))}
_SEVERITIES: Final[dict[Severity, int]] = {severity: place for place, severity in enumerate(get_args(Severity))}
_CLUSTER: Final = AttentionObject(kind="cluster")
_NEVER: Final = datetime.max.replace(tzinfo=UTC)

T = TypeVar("T")
K = TypeVar("K")


def find_attention(snapshot: AttentionSnapshot) -> list[AttentionEntry]:
    """All entries: by severity, then by cause, then the oldest first."""
    entries = [
        *_of_cluster(snapshot),
        *_of_workers(snapshot.workers),
        *_of_instances(snapshot.instances, snapshot.at),
        *map(_of_deployment, snapshot.deployments),
        *_of_idle(snapshot.idle),
        *_of_gpus(snapshot.gpus),
        *_of_access(snapshot),
        *(entry for certificate in snapshot.certificates for entry in _of_certificate(certificate, snapshot.at)),
    ]
    return sorted(
        entries, key=lambda e: (_SEVERITIES[e.severity], _CAUSES[e.cause], e.since or _NEVER, e.object.name, e.code)
    )


def _of_cluster(snapshot: AttentionSnapshot) -> Iterator[AttentionEntry]:
    if not snapshot.leader:
        since = snapshot.leaderless_since
        yield _entry("critical", "no_leader", NO_LEADER, _CLUSTER, "no controller leads", since=since)
    if snapshot.database_full_since is not None:
        yield _entry(
            "critical", "database", DATABASE_FULL, _CLUSTER, "the disk of the database is full",
            since=snapshot.database_full_since,
        )  # fmt: skip
    elif snapshot.database_low:
        title = "the disk of the database is almost full"
        yield _entry("warning", "database", DATABASE_DISK_LOW, _CLUSTER, title, _sentences(snapshot.database_low))
    if snapshot.violations:
        message = first_of(snapshot.violations, 1)
        yield _entry(
            "critical", "invariant", "invariant_violated", _CLUSTER, "the ledger breaks an invariant", message,
            count=len(snapshot.violations),
        )  # fmt: skip


def _of_workers(workers: Sequence[TroubledWorker]) -> Iterator[AttentionEntry]:
    absent = [worker for worker in workers if not worker.ready]
    if silent := [worker for worker in absent if worker.reason == BREAKER_OPEN]:
        title = f"{len(silent)} workers are silent at once"
        instances = _instances_text(sum(worker.instances for worker in silent))
        yield _entry(
            "critical", "workers_silent", BREAKER_OPEN, _CLUSTER, title, _sentences(_meaning(BREAKER_OPEN), instances),
            since=_oldest(worker.since for worker in silent), count=len(silent), subjects=_workers(silent),
        )  # fmt: skip
    for worker in absent:
        if worker.reason != BREAKER_OPEN and REFUSED not in {code for code, *_ in worker.conditions}:
            yield _absent(worker)
    conditions: defaultdict[str, list[tuple[TroubledWorker, str, datetime | None]]] = defaultdict(list)
    for worker in workers:
        for code, message, since in worker.conditions:
            # Not of an absent worker: its conditions are old, and the cause of its absence is reported.
            if worker.ready or code == REFUSED:
                conditions[code].append((worker, message, since))
    for code, affected in conditions.items():
        yield _condition(code, affected)


def _absent(worker: TroubledWorker) -> AttentionEntry:
    code = worker.reason or {"lost": "worker_lost", "joining": "worker_joining"}.get(worker.state, "worker_unreachable")
    meaning = next((message for known, message, _ in worker.conditions if known == code and message), _meaning(code))
    message = _sentences(meaning, _instances_text(worker.instances))
    return _entry(
        "error" if worker.state == "lost" else "warning", "worker", code, _worker(worker.name),
        f"worker {worker.name} is {worker.state}", message, since=worker.since, count=worker.instances,
        subjects=[_instance(name) for name in worker.sample],
    )  # fmt: skip


def _condition(code: str, affected: Sequence[tuple[TroubledWorker, str, datetime | None]]) -> AttentionEntry:
    first, message, _ = affected[0]
    several = len(affected) > 1
    title = f"{len(affected)} workers: {code}" if several else f"worker {first.name}: {code}"
    lost = any(worker.state == "lost" for worker, *_ in affected)
    return _entry(
        "error" if lost else "warning", "worker_condition", code, _CLUSTER if several else _worker(first.name), title,
        f"{first.name}: {message}" if several else message, since=_oldest(since for *_, since in affected),
        count=len(affected), subjects=_workers([worker for worker, *_ in affected]),
    )  # fmt: skip


def _of_instances(instances: Sequence[TroubledInstance], at: datetime) -> Iterator[AttentionEntry]:
    by_cause: dict[Cause, list[TroubledInstance]] = defaultdict(list)
    for instance in instances:
        if (cause := _cause(instance, at)) is not None:
            by_cause[cause].append(instance)
    for cause, affected in by_cause.items():
        for name, some in _grouped(affected, lambda instance: instance.deployment).items():
            yield _of_some(cause, name, some)


def _cause(instance: TroubledInstance, at: datetime) -> Cause | None:
    """The cause of this instance's trouble; None if it has no trouble."""
    if instance.need_error or (instance.phase == "failed" and instance.reason == Reason.METADATA_UNKNOWN):
        return "model"
    if instance.phase == "failed":
        return "failed"
    if instance.phase in ("pending", "backoff") and instance.reason in SECRET_REFUSALS:
        return "secrets"
    if instance.phase == "pending" and at - instance.since >= PENDING_AFTER:
        return "pending"
    repeated = instance.phase == "backoff" and (instance.failures or instance.reason == ENDED_REPEATEDLY)
    if instance.failures >= _CRASHES or repeated:
        return "crash_loop"
    return "starting" if instance.overdue else None


def _of_some(cause: Cause, deployment: str, instances: Sequence[TroubledInstance]) -> AttentionEntry:
    first = instances[0]
    code, message = first.reason, first.message
    if cause == "starting":
        code, message = START_OVERDUE, ""
    if cause == "model":
        code, message = Reason.METADATA_UNKNOWN, first.need_error or first.message
    repeats = cause in ("crash_loop", "model")
    since = _oldest(instance.failing_since if repeats else instance.since for instance in instances)
    titles = {
        "model": f"the model of {deployment} cannot be read",
        "failed": f"{deployment} has failed",
        "crash_loop": f"{deployment} {'is ended' if code == ENDED_REPEATEDLY else 'crashes'} repeatedly",
        "pending": f"{deployment} is pending",
        "secrets": f"{deployment} lacks a secret",
        "starting": f"{deployment} has been starting for long",
    }
    return _entry(
        "warning" if cause in ("pending", "starting") else "error", cause, code, _deployment(deployment), titles[cause],
        message, since=since, count=len(instances), subjects=[_instance(i.id) for i in instances],
    )  # fmt: skip


def _of_deployment(deployment: TroubledDeployment) -> AttentionEntry:
    rollout = deployment.reason.startswith("rollout_")
    title = f"the rollout of {deployment.name} has ended early" if rollout else f"{deployment.name} cannot be processed"
    return _entry(
        "warning" if rollout else "error", "rollout" if rollout else "reconcile", deployment.reason,
        _deployment(deployment.name), title, deployment.message, since=deployment.since,
    )  # fmt: skip


def _of_idle(idle: Sequence[IdleInstance]) -> Iterator[AttentionEntry]:
    for name, instances in _grouped(idle, lambda instance: instance.deployment).items():
        first = instances[0]
        code = f"policy_would_{first.action}" if first.dry_run else "idle"
        label = f"policy {first.policy}" if first.policy else f"the policy of {name}"
        names = first_of([instance.id for instance in instances], 1)
        would = {"stop": f"would stop {name}", "scale_down": f"would scale down by {names}"}.get(
            first.action, f"would report {names}"
        )
        since = _oldest(instance.since for instance in instances)
        when = f" since {since:%Y-%m-%d %H:%M:%S} UTC" if since is not None else ""
        dry_run = f"dry run: {label} {would}{when}: " if first.dry_run else f"{label}: "
        yield _entry(
            "notice", "idle", code, _deployment(name), f"{name} is idle", f"{dry_run}{first.message}", since=since,
            count=len(instances), subjects=[_instance(instance.id) for instance in instances],
            advice="" if not first.dry_run else "Stop it, or end the dry run of the policy.",
        )  # fmt: skip


def _of_gpus(gpus: Sequence[SickGpu]) -> Iterator[AttentionEntry]:
    for (worker, code), some in _grouped(gpus, lambda gpu: (gpu.worker, reason_code(gpu.reason))).items():
        first, held = some[0], sum(gpu.instances for gpu in some)
        title = f"{len(some)} GPUs of worker {worker} are unhealthy"
        if len(some) == 1:
            title = f"GPU {first.index} of worker {worker} is unhealthy"
        subjects = [AttentionObject(kind="gpu", name=gpu.uuid) for gpu in some]
        yield _entry(
            "error" if held else "warning", "gpu", code, subjects[0] if len(some) == 1 else _worker(worker), title,
            _sentences(first.reason, _instances_text(held)), count=len(some), subjects=subjects,
            since=_oldest(gpu.since for gpu in some),
        )  # fmt: skip


def _of_access(snapshot: AttentionSnapshot) -> Iterator[AttentionEntry]:
    if n := snapshot.unreadable_secrets:
        title = "a secret cannot be read" if n == 1 else f"{n} secrets cannot be read"
        yield _entry("error", "secrets", "secrets_unreadable", _CLUSTER, title, count=n)
    if n := snapshot.plain_secrets:
        title = "a secret is stored unencrypted" if n == 1 else f"{n} secrets are stored unencrypted"
        yield _entry("warning", "secrets", "secrets_plain", _CLUSTER, title, count=n)
    yield from _of_sealing(snapshot.sealing)
    if snapshot.keys:
        first, n = snapshot.keys[0], len(snapshot.keys)
        title = f"API key {first.name} expires soon" if n == 1 else f"{n} API keys expire soon"
        message = f"API key {first.name} ({first.id}) expires at {first.expires_at:%Y-%m-%d %H:%M} UTC."
        yield _entry("notice", "keys", "key_expires", _CLUSTER, title, message, count=n)


def _of_sealing(snapshot: SealingState) -> Iterator[AttentionEntry]:
    if snapshot.plain:
        yield _entry("warning", "secrets", "keys_plain", _CLUSTER, "keys of agents are stored unencrypted")
    if snapshot.receipts_unreadable:
        yield _entry("error", "secrets", "receipts_unreadable", _CLUSTER, "the key of receipts cannot be read")
    yield from _of_gateways("error", "gateway_locked_out", "cannot reach engines", snapshot.locked_out)
    yield from _of_gateways(
        "warning", "gateway_without_key", "cannot open sealed secrets of proxies", snapshot.waits_for
    )


def _of_gateways(severity: Severity, code: str, does: str, gateways: Sequence[str]) -> Iterator[AttentionEntry]:
    if n := len(gateways):
        named = ", ".join(gateways[:_GATEWAYS_NAMED]) + (" and others" if n > _GATEWAYS_NAMED else "")
        title = f"gateway {gateways[0]} {does}" if n == 1 else f"{n} gateways {does}"
        yield _entry(severity, "secrets", code, _CLUSTER, title, f"{_meaning(code)} Gateways: {named}.", count=n)


def _of_certificate(certificate: CertificateState, at: datetime) -> Iterator[AttentionEntry]:
    name, code = (
        ("the certificate authority", "authority") if certificate.authority else ("the certificate", "certificate")
    )
    ends = f"{certificate.ends_at:%Y-%m-%d %H:%M} UTC."
    if certificate.ends_at <= at:
        title = f"{name} of the controller has expired"
        yield _entry(
            "error", "certificate", f"{code}_expired", _CLUSTER, title, f"It ended at {ends}", since=certificate.ends_at
        )
    elif certificate.ends_at - at < timedelta(seconds=certificate.warn_s):
        yield _entry(
            "warning", "certificate", f"{code}_ends", _CLUSTER, f"{name} of the controller ends soon",
            f"It ends at {ends}",
        )  # fmt: skip
    if certificate.problem:
        title = "the new certificate of the controller is not used"
        yield _entry(
            "warning", "certificate", "certificate_not_replaced", _CLUSTER, title, _sentences(certificate.problem)
        )


def _entry(
    severity: Severity,
    cause: Cause,
    code: str,
    subject: AttentionObject,
    title: str,
    message: str = "",
    *,
    since: datetime | None = None,
    count: int = 1,
    subjects: Sequence[AttentionObject] = (),
    advice: str = "",
) -> AttentionEntry:
    remedy = _TEXTS[code].remedy if code in _TEXTS else ""
    return AttentionEntry(
        id=f"{cause}/{subject.kind}/{subject.name}/{code}",
        severity=severity,
        cause=cause,
        code=code,
        since=since,
        title=title,
        message=message or _meaning(code),
        count=count,
        subjects=list(subjects[:MAX_SUBJECTS]),
        object=subject,
        advice=advice or remedy,
    )


def _meaning(code: str) -> str:
    return _TEXTS[code].meaning if code in _TEXTS else code


def _instances_text(count: int) -> str:
    if not count:
        return ""
    return "1 instance holds claims there." if count == 1 else f"{count} instances hold claims there."


def _sentences(*parts: str) -> str:
    """The parts with text, each with its full stop."""
    return " ".join(part if part.endswith(".") else f"{part}." for part in parts if part)


def _oldest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def _grouped(things: Sequence[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = defaultdict(list)
    for thing in things:
        groups[key(thing)].append(thing)
    return groups


def _worker(name: str) -> AttentionObject:
    return AttentionObject(kind="worker", name=name)


def _workers(workers: Sequence[TroubledWorker]) -> list[AttentionObject]:
    return [_worker(worker.name) for worker in workers]


def _deployment(name: str) -> AttentionObject:
    return AttentionObject(kind="deployment", name=name)


def _instance(name: str) -> AttentionObject:
    return AttentionObject(kind="instance", name=name)
