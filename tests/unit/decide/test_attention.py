"""What needs an operator: a table of what is read and what follows, the order, and that causes are not told twice."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.decide.attention import MAX_SUBJECTS, find_attention
from controller.domain.attention import (
    AttentionSnapshot,
    CertificateState,
    ExpiringKey,
    IdleInstance,
    SealingState,
    SickGpu,
    TroubledDeployment,
    TroubledInstance,
    TroubledWorker,
)
from schemas.api.attention import AttentionEntry
from schemas.status_reasons import REASONS

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def instance(name: str, phase: str, seconds: float = 300, **more: Any) -> TroubledInstance:
    fields: dict[str, Any] = {"reason": "", "message": "", **more}
    return TroubledInstance(name, name.rpartition("-")[0], phase, ago(seconds), **fields)


def worker(name: str, state: str = "lost", **more: Any) -> TroubledWorker:
    fields: dict[str, Any] = {"ready": state == "ready", "reason": "", "since": ago(90), **more}
    return TroubledWorker(name, state=state, **fields)


def idle(name: str, **more: Any) -> IdleInstance:
    fields: dict[str, Any] = {"policy": "p", "action": "stop", "dry_run": True, "message": "0 % for 5m", **more}
    return IdleInstance(name, name.rpartition("-")[0], since=ago(60), **fields)


def found(**facts: Any) -> list[AttentionEntry]:
    return find_attention(AttentionSnapshot(NOW, **facts))


CRASH = {"reason": "crash", "message": "exited with code 3; restarts in 20 s", "failing_since": ago(500)}
CASES: list[tuple[dict[str, Any], tuple[str, str, str, int, str] | None]] = [
    ({}, None),
    ({"database_full_since": ago(60)}, ("critical", "database", "database_full", 1, "cluster/")),
    (
        {"database_full_since": ago(60), "database_low": "0 MiB are free"},
        ("critical", "database", "database_full", 1, "cluster/"),
    ),
    ({"database_low": "900 MiB are free"}, ("warning", "database", "database_disk_low", 1, "cluster/")),
    ({"unreadable_secrets": 2}, ("error", "secrets", "secrets_unreadable", 2, "cluster/")),
    ({"plain_secrets": 3}, ("warning", "secrets", "secrets_plain", 3, "cluster/")),
    ({"sealing": SealingState()}, None),
    ({"sealing": SealingState(plain=True)}, ("warning", "secrets", "keys_plain", 1, "cluster/")),
    (
        {"sealing": SealingState(waits_for=["a", "b"])},
        ("warning", "secrets", "gateway_without_key", 2, "cluster/"),
    ),
    ({"sealing": SealingState(locked_out=["a"])}, ("error", "secrets", "gateway_locked_out", 1, "cluster/")),
    (
        {"sealing": SealingState(receipts_unreadable=True)},
        ("error", "secrets", "receipts_unreadable", 1, "cluster/"),
    ),
    ({"keys": [ExpiringKey("id", "ci", NOW)]}, ("notice", "keys", "key_expires", 1, "cluster/")),
    ({"certificates": [CertificateState(ago(-60), 59.0), CertificateState(ago(-60), 60.0, authority=True)]}, None),
    (
        {"certificates": [CertificateState(ago(-59), 60.0)]},
        ("warning", "certificate", "certificate_ends", 1, "cluster/"),
    ),
    ({"certificates": [CertificateState(NOW, 60.0)]}, ("error", "certificate", "certificate_expired", 1, "cluster/")),
    (
        {"certificates": [CertificateState(ago(-59), 60.0, authority=True)]},
        ("warning", "certificate", "authority_ends", 1, "cluster/"),
    ),
    (
        {"certificates": [CertificateState(ago(-99), 60.0, problem="a key is missing")]},
        ("warning", "certificate", "certificate_not_replaced", 1, "cluster/"),
    ),
    ({"leader": False, "leaderless_since": ago(30)}, ("critical", "no_leader", "no_leader", 1, "cluster/")),
    ({"violations": ["a", "b"]}, ("critical", "invariant", "invariant_violated", 2, "cluster/")),
    ({"workers": [worker("w3", instances=300)]}, ("error", "worker", "worker_lost", 300, "worker/w3")),
    ({"workers": [worker("w", "unreachable")]}, ("warning", "worker", "worker_unreachable", 0, "worker/w")),
    ({"workers": [worker("w", "unreachable", reason="silent")]}, ("warning", "worker", "silent", 0, "worker/w")),
    ({"workers": [worker("w", "joining")]}, ("warning", "worker", "worker_joining", 0, "worker/w")),
    (
        {"workers": [worker("w", "quarantined", reason="two_identities")]},
        ("warning", "worker", "two_identities", 0, "worker/w"),
    ),
    (
        {"workers": [worker(f"w{n}", "unreachable", reason="breaker_open", instances=2) for n in range(40)]},
        ("critical", "workers_silent", "breaker_open", 40, "cluster/"),
    ),
    (
        {"workers": [worker("w", "ready", conditions=[("no_common_protocol", "too old", ago(9))])]},
        ("warning", "worker_condition", "no_common_protocol", 1, "worker/w"),
    ),
    (
        {"workers": [worker(f"w{n}", conditions=[("no_common_protocol", "too old", ago(9))]) for n in range(9)]},
        ("error", "worker_condition", "no_common_protocol", 9, "cluster/"),
    ),
    (
        {"workers": [worker("w", "quarantined", reason="two_identities", conditions=[("two_identities", "x", None)])]},
        ("warning", "worker", "two_identities", 0, "worker/w"),
    ),
    (
        {"workers": [worker("w", conditions=[("nvml_failed", "x", None)])]},
        ("error", "worker", "worker_lost", 0, "worker/w"),
    ),
    (
        {"workers": [worker(f"w{n}", "ready", conditions=[("nvml_failed", "x", None)]) for n in range(3)]},
        ("warning", "worker_condition", "nvml_failed", 3, "cluster/"),
    ),
    (
        {"instances": [instance(f"d-{n}", "backoff", failures=1, **CRASH) for n in range(7)]},
        ("error", "crash_loop", "crash", 7, "deployment/d"),
    ),
    ({"instances": [instance("d-1", "starting", failures=2)]}, ("error", "crash_loop", "", 1, "deployment/d")),
    ({"instances": [instance("d-1", "running", failures=1)]}, None),
    ({"instances": [instance("d-1", "backoff", reason="agent_stopped")]}, None),
    (
        {"instances": [instance("d-1", "backoff", reason="ended_repeatedly")]},
        ("error", "crash_loop", "ended_repeatedly", 1, "deployment/d"),
    ),
    ({"instances": [instance("d-1", "pending", 59)]}, None),
    (
        {"instances": [instance("d-1", "pending", 60, reason="need_gt_free", message="0/3 fit")]},
        ("warning", "pending", "need_gt_free", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "pending", 1, reason="secret_missing", message="secret 'hf' does not exist")]},
        ("error", "secrets", "secret_missing", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "backoff", failures=4, reason="secret_forbidden")]},
        ("error", "secrets", "secret_forbidden", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "starting", 700, overdue=True)]},
        ("warning", "starting", "start_overdue", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "starting", 700, overdue=True, failures=2)]},
        ("error", "crash_loop", "", 1, "deployment/d"),
    ),
    ({"instances": [instance("d-1", "analyzing", 600)]}, None),
    (
        {"instances": [instance("d-1", "pending", 5, failures=3, **CRASH)]},
        ("error", "crash_loop", "crash", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "failed", reason="engine_usage")]},
        ("error", "failed", "engine_usage", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "failed", reason="metadata_unknown", message="no such repository")]},
        ("error", "model", "metadata_unknown", 1, "deployment/d"),
    ),
    (
        {"instances": [instance("d-1", "analyzing", 1, need_error="the hub does not answer")]},
        ("error", "model", "metadata_unknown", 1, "deployment/d"),
    ),
    (
        {"deployments": [TroubledDeployment("d", "reconcile_failing", "the step fails", ago(9))]},
        ("error", "reconcile", "reconcile_failing", 1, "deployment/d"),
    ),
    (
        {"deployments": [TroubledDeployment("d", "rollout_failed", "", None)]},
        ("warning", "rollout", "rollout_failed", 1, "deployment/d"),
    ),
    ({"idle": [idle("d-0"), idle("d-1")]}, ("notice", "idle", "policy_would_stop", 2, "deployment/d")),
    ({"idle": [idle("d-0", dry_run=False, action="notify")]}, ("notice", "idle", "idle", 1, "deployment/d")),
    ({"gpus": [SickGpu("GPU-1", "w", 3, "xid_79: fell off", 2)]}, ("error", "gpu", "xid_79", 1, "gpu/GPU-1")),
    (
        {"gpus": [SickGpu(f"GPU-{n}", "w", n, "gpu_lost", 0) for n in range(8)]},
        ("warning", "gpu", "gpu_lost", 8, "worker/w"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "expected"), CASES)
def test_what_is_read_and_what_follows(facts: dict[str, Any], expected: tuple[str, str, str, int, str] | None) -> None:
    told = [
        (one.severity, one.cause, one.code, one.count, f"{one.object.kind}/{one.object.name}") for one in found(**facts)
    ]
    assert told == ([] if expected is None else [expected])


def test_the_worst_come_first_and_the_oldest_of_them() -> None:
    entries = found(
        idle=[idle("lazy-0")],
        instances=[
            instance("waits-0", "pending", 100, reason="need_gt_free"),
            instance("older-0", "pending", 900, reason="need_gt_free"),
            instance("loops-0", "backoff", failures=4, **CRASH),
        ],
        workers=[worker("w3")],
        leader=False,
    )
    assert [(one.cause, one.object.name) for one in entries] == [
        ("no_leader", ""), ("worker", "w3"), ("crash_loop", "loops"), ("pending", "older"), ("pending", "waits"),
        ("idle", "lazy"),
    ]  # fmt: skip
    assert len({one.id for one in entries}) == len(entries)


def test_each_entry_says_what_since_and_what_to_do() -> None:
    (lost,) = found(workers=[worker("w3", instances=300, sample=[f"i-{n}" for n in range(30)])])
    assert (lost.title, lost.since) == ("worker w3 is lost", ago(90))
    assert lost.message.endswith("300 instances hold claims there.")
    assert (len(lost.subjects), lost.advice.startswith("Bring it back")) == (MAX_SUBJECTS, True)

    (loop,) = found(instances=[instance("d-0", "backoff", failures=4, **CRASH)])
    assert (loop.message, loop.since) == (CRASH["message"], ago(500))
    assert "gpuward logs" in loop.advice

    (wordless,) = found(instances=[instance("d-0", "backoff", failures=4, reason="ended_repeatedly")])
    (meaning,) = {group[wordless.code].meaning for group in REASONS.values() if wordless.code in group}
    assert wordless.message == meaning, "a code without a message of its own has that of the reference"
    (reasonless,) = found(deployments=[TroubledDeployment("d", "rollout_failed", "", None)])
    assert reasonless.message
    assert reasonless.message != reasonless.code

    away = {"state": "unreachable", "reason": "silent"}
    (bare,), (wordy,) = (
        found(workers=[worker("w", **away, conditions=[("silent", m, None)])]) for m in ("", "no sign")
    )
    assert bare.message == found(workers=[worker("w", **away)])[0].message
    assert wordy.message.startswith("no sign")

    (dry,) = found(idle=[idle("d-0")])
    assert dry.message == "dry run: policy p would stop d since 2026-01-01 11:59:00 UTC: 0 % for 5m"
    (inline,) = found(idle=[replace(idle("d-0"), policy="", action="scale_down")])
    assert inline.message.startswith("dry run: the policy of d would scale down by d-0 since ")


def test_an_instance_is_in_one_entry_at_most() -> None:
    """Its model cannot be read, and it has been pending for long."""
    entries = found(instances=[instance("d-0", "pending", 900, failures=5, need_error="gone")])
    assert [one.cause for one in entries] == ["model"]


def test_titles_of_deployments() -> None:
    (ended,) = found(deployments=[TroubledDeployment("d", "rollout_failed", "it did not start", ago(9))])
    assert (ended.severity, ended.cause, ended.title) == ("warning", "rollout", "the rollout of d has ended early")
    (stuck,) = found(deployments=[TroubledDeployment("d", "quarantined", "KeyError", ago(9))])
    assert (stuck.severity, stuck.cause, stuck.title) == ("error", "reconcile", "d cannot be processed")
    assert (ended.message, ended.since, stuck.message) == ("it did not start", ago(9), "KeyError")


@pytest.mark.parametrize(
    ("some", "title"),
    [
        (instance("d-0", "failed", reason="exit"), "d has failed"),
        (instance("d-0", "backoff", failures=4, **CRASH), "d crashes repeatedly"),
        (instance("d-0", "backoff", reason="ended_repeatedly"), "d is ended repeatedly"),
        (instance("d-0", "pending", 60, reason="need_gt_free"), "d is pending"),
        (instance("d-0", "pending", 1, reason="secret_missing"), "d lacks a secret"),
        (instance("d-0", "starting", overdue=True), "d has been starting for long"),
        (instance("d-0", "pending", need_error="gone"), "the model of d cannot be read"),
        (instance("d-0", "pending", 59, reason="need_gt_free"), None),
        (instance("d-0", "running", failures=1), None),
        (instance("d-0", "running", failures=2), "d crashes repeatedly"),
        (instance("d-0", "backoff", failures=1), "d crashes repeatedly"),
    ],
)
def test_titles_of_instances(some: TroubledInstance, title: str | None) -> None:
    assert [one.title for one in found(instances=[some])] == ([] if title is None else [title])


def test_words_for_one_and_for_several() -> None:
    titles = {
        "a secret cannot be read": {"unreadable_secrets": 1},
        "2 secrets cannot be read": {"unreadable_secrets": 2},
        "a secret is stored unencrypted": {"plain_secrets": 1},
        "2 secrets are stored unencrypted": {"plain_secrets": 2},
        "API key ci expires soon": {"keys": [ExpiringKey("id", "ci", NOW)]},
        "2 API keys expire soon": {"keys": [ExpiringKey("id", "ci", NOW)] * 2},
        "GPU 3 of worker w is unhealthy": {"gpus": [SickGpu("GPU-3", "w", 3, "gpu_lost", 0)]},
        "2 GPUs of worker w are unhealthy": {"gpus": [SickGpu(f"GPU-{n}", "w", n, "gpu_lost", 0) for n in (3, 4)]},
        "gateway a cannot reach engines": {"sealing": SealingState(locked_out=["a"])},
        "2 gateways cannot reach engines": {"sealing": SealingState(locked_out=["a", "b"])},
    }
    for title, facts in titles.items():
        assert [one.title for one in found(**facts)] == [title]
    (five,) = found(sealing=SealingState(locked_out=list("abcde")))
    (six,) = found(sealing=SealingState(locked_out=list("abcdef")))
    assert five.message.endswith("Gateways: a, b, c, d, e.")
    assert six.message.endswith("Gateways: a, b, c, d, e and others.")
    (held,) = found(gpus=[SickGpu("GPU-3", "w", 3, "gpu_lost", 1)])
    assert (held.severity, held.message.endswith("1 instance holds claims there.")) == ("error", True)
    (two,) = found(gpus=[SickGpu("GPU-3", "w", 3, "gpu_lost", 2)])
    assert two.message.endswith("2 instances hold claims there.")


def test_workers_with_the_same_condition_are_one_entry() -> None:
    some = [worker(name, "ready", conditions=[("disk_full", f"{name} is full", ago(9))]) for name in ("w1", "w2")]
    (two,) = found(workers=some)
    assert (two.title, two.message) == ("2 workers: disk_full", "w1: w1 is full")
    assert (two.count, two.object.kind, [one.name for one in two.subjects]) == (2, "cluster", ["w1", "w2"])
    (one,) = found(workers=some[:1])
    assert (one.title, one.message) == ("worker w1: disk_full", "w1 is full")
    assert (one.count, one.object.name, one.severity) == (1, "w1", "warning")
