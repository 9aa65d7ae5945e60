"""Utilization policies and their verdicts as text, for tables and `describe`. Pure."""

from datetime import datetime
from typing import TYPE_CHECKING

from cli.text.formatting import DASH, age, duration, span

if TYPE_CHECKING:  # slow to import
    from schemas.api.instances import InstanceStatus
    from schemas.api.policies import DeploymentPolicy, InstanceUtilization
    from schemas.manifest.policy import UtilizationPolicy


def idle_for(status: "InstanceStatus", now: datetime) -> str:
    """The time below the minimum of its policy; `-` if it is not below, or has no policy."""
    verdict = status.utilization
    return DASH if verdict is None or verdict.low_since is None else duration((now - verdict.low_since).total_seconds())


def stops_in(status: "InstanceStatus", now: datetime) -> str:
    """The time until the policy stops an instance that stays low; `-` if unknown, or if the policy only notifies."""
    verdict = status.utilization
    if verdict is None or verdict.action == "notify":
        return DASH
    dry_run = " (dry run)" if verdict.dry_run else ""
    if verdict.verdict == "idle":
        return f"idle{dry_run}"
    return DASH if verdict.due_at is None else duration((verdict.due_at - now).total_seconds()) + dry_run


def action_of(policy: "UtilizationPolicy") -> str:
    return f"{policy.action} (dry run)" if policy.dry_run else policy.action


def rule_of(policy: "UtilizationPolicy") -> str:
    """Such as `below 50% for 5m (all GPUs): stop`."""
    gpus = {"all": "all GPUs", "any": "any GPU", "mean": "mean of the GPUs"}[policy.gpus]
    return f"below {policy.min_gpu_utilization}% for {span(policy.time_window)} ({gpus}): {action_of(policy)}"


def effective_policy(policy: "DeploymentPolicy | None") -> str:
    if policy is None:
        return "none"
    name = "inline" if policy.origin == "inline" else f"{policy.name}, generation {policy.generation}"
    warning = f" (warning: {policy.spec.coverage_warning})" if policy.spec.coverage_warning else ""
    return f"{name}{' (the default)' if policy.origin == 'default' else ''}: {rule_of(policy.spec)}{warning}"


def verdict_fields(verdict: "InstanceUtilization", now: datetime) -> list[tuple[str, str]]:
    action = f"{verdict.action} (dry run)" if verdict.dry_run else verdict.action
    fields = [
        ("Policy", f"{verdict.policy or 'inline'}, generation {verdict.policy_generation}: {action}"),
        ("Verdict", f"{verdict.verdict}, for {age(verdict.since, now)} ({verdict.reason or DASH})"),
        ("Message", verdict.message or DASH),
    ]
    if verdict.low_since:
        fields.append(("Low for", duration((now - verdict.low_since).total_seconds())))
    if verdict.due_at and verdict.due_at > now:
        fields.append(("Idle in", duration((verdict.due_at - now).total_seconds())))
    return fields
