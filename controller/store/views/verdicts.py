"""Policies' verdicts as the API shows them: at an instance, and as the condition `Idle` of a deployment."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from controller.domain.policies import acts_text
from controller.store.core.database import Reader, view_of
from controller.store.policies.effective import EFFECTIVE, effective_policy
from schemas.api.envelopes import Condition
from schemas.api.policies import DeploymentPolicy, InstanceUtilization

IDLE: Final = "Idle"
_STATUS: Final[Mapping[str, Literal["true", "false", "unknown"]]] = {
    "busy": "false", "unknown": "unknown", "idle": "true",
}  # fmt: skip
_NOT_READ: Final = ("stale", "coverage", "no_telemetry", "no_process_utilization")
# A verdict on an earlier epoch does not count for the present one.
_VERDICTS: Final = """
    select v.* from policy_verdicts v
      join instances i on i.id = v.instance_id and i.epoch = v.epoch
                      and i.phase not in ('stopping', 'replaced', 'succeeded', 'failed')"""
_POLICIES: Final = f"select * from ({EFFECTIVE}) e where e.deployment_uid = any($1::uuid[])"  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Watched:
    """The effective policy of a deployment, and its condition."""

    policy: DeploymentPolicy
    condition: Condition


async def verdicts_of(connection: Reader, instances: Collection[str]) -> dict[str, InstanceUtilization]:
    """The present verdicts on these instances; instances without one are missing."""
    if not instances:
        return {}
    rows = await connection.fetch(f"{_VERDICTS} where v.instance_id = any($1)", list(instances))
    return {row["instance_id"]: _verdict(row) for row in rows}


async def watched_of(connection: Reader, uids: Collection[Any]) -> dict[Any, Watched]:
    """The effective policies of these deployments and their conditions; deployments without one are missing."""
    policies = await connection.fetch(_POLICIES, list(uids)) if uids else []
    if not policies:
        return {}
    verdicts: dict[Any, list[tuple[str, InstanceUtilization]]] = defaultdict(list)
    query = f"{_VERDICTS} where v.deployment_uid = any($1::uuid[]) order by v.instance_id"
    for row in await connection.fetch(query, [policy["deployment_uid"] for policy in policies]):
        verdicts[row["deployment_uid"]].append((row["instance_id"], _verdict(row)))
    return {
        row["deployment_uid"]: Watched(_policy(row), idle_condition(verdicts[row["deployment_uid"]]))
        for row in policies
    }


def idle_condition(verdicts: Sequence[tuple[str, InstanceUtilization]]) -> Condition:
    """Whether a deployment is idle: all of its instances are, some are not, or it is unknown."""
    if not verdicts:
        return Condition(type=IDLE, status="unknown", reason="not_running", message="no instance is running")
    of = {kind: [item for item in verdicts if item[1].verdict == kind] for kind in ("busy", "unknown", "idle")}
    decisive = of["busy"] or of["unknown"] or of["idle"]
    instance, verdict = decisive[0]
    message = verdict.message
    if len(verdicts) > 1:
        counts = ", ".join(f"{len(of[kind])} {kind}" for kind in ("idle", "busy", "unknown") if of[kind])
        message = f"{counts}; {instance}: {message or verdict.reason}"
    status = _STATUS[verdict.verdict]
    # Idle since the last instance became idle; busy or unknown since the first instance was.
    since = (max if status == "true" else min)(verdict.since for _, verdict in decisive)
    return Condition(type=IDLE, status=status, reason=verdict.reason, message=message, since=since)


def _policy(row: Any) -> DeploymentPolicy:
    policy = effective_policy(row)
    return DeploymentPolicy(origin=row["origin"], name=policy.name, generation=policy.generation, spec=policy.spec)


def _verdict(row: Any) -> InstanceUtilization:
    # Without readings until now, it is not known to be low.
    unread: dict[str, Any] = {"low_since": None} if row["reason"] in _NOT_READ else {}
    return view_of(InstanceUtilization, row, acts=acts_text(row["action"], dry_run=row["dry_run"]), **unread)
