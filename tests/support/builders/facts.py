"""Builders of snapshots of deployments for decisions; a test names only what differs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.domain.instances import (
    ClaimedWorker,
    CommandState,
    DeploymentSnapshot,
    InstanceClaim,
    InstanceState,
    Intent,
    ReportedProcess,
    Revision,
)
from controller.domain.phases import HOLDS_CLAIMS, InstancePhase
from controller.domain.placement import Need
from schemas.manifest.deployment import DeploymentSpec

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NEED = Need(memory_mib=1024)


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", **fields})


def host(name: str = "w1", **fields: Any) -> ClaimedWorker:
    base = ClaimedWorker(name, name, "ready", "", False, False, False, None)
    return replace(base, **fields)


def start(
    state: str = "accepted", *, sent: bool = True, epoch: int = 1, code: str = "", verb: str = "start"
) -> CommandState:
    return CommandState(7, epoch, 0, verb, "w1", state, sent, code, "")  # type: ignore[arg-type]  # table data


def process(state: str, reason: str | None = None, exit_code: int | None = None, *, epoch: int = 1) -> ReportedProcess:
    return ReportedProcess(epoch, 0, "w1", state, reason, exit_code, "")  # type: ignore[arg-type]  # table data


def instance(name: str, phase: str, *, age_s: float = 60, **fields: Any) -> InstanceState:
    """In a phase that holds claims it has a host claim and a GPU; past `scheduled` its start was accepted."""
    at = InstancePhase(phase)
    claims = (
        InstanceClaim(f"GPU-{name}", "w1", "gpu", 1, 0, 1024, 0, False, 0),
        InstanceClaim("host-w1", "w1", "host", 1, 0, 0, 0, False, 1),
    )
    base = InstanceState(
        id=name,
        revision=1,
        phase=at,
        phase_since=NOW - timedelta(seconds=age_s),
        reason="",
        message="",
        epoch=1 if at in HOLDS_CLAIMS else 0,
        restarts=0,
        failures=0,
        not_before=None,
        stop_reason=None,
        replaces=None,
        created_at=NOW - timedelta(seconds=age_s),
        claims=claims if at in HOLDS_CLAIMS else (),
        commands=(start(),) if at in HOLDS_CLAIMS else (),
    )
    return replace(base, **fields)


def deployment(*instances: InstanceState, hosts: tuple[ClaimedWorker, ...] = (), **fields: Any) -> DeploymentSnapshot:
    given: DeploymentSpec = fields.pop("spec", None) or spec()
    need = fields.pop("need", NEED)
    revision = fields.get("revision", 1)
    revisions = fields.pop(
        "revisions",
        {g: Revision(g, given, f"hash-{g}", NOW - timedelta(minutes=5), need=need) for g in range(1, revision + 1)},
    )
    base = DeploymentSnapshot(
        uid="d-uid",
        name="d",
        generation=revision,
        revision=1,
        version=0,
        spec=given,
        created_at=NOW - timedelta(minutes=5),
        deleted_at=None,
        phase="pending",
        reason="",
        message="",
        ready=0,
        observed_generation=1,
        conditions=(),
        now=NOW,
        revisions=revisions,
        instances=instances,
        hosts={h.id: h for h in (hosts or (host(),))},
    )
    return replace(base, **fields)


def intent(source: str = "user", max_replicas: int = 0, reason: str = "stopped") -> Intent:
    return Intent(source, max_replicas, reason)
