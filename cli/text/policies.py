"""Utilization policies and their verdicts as text, for tables and `describe`. Pure."""

from datetime import datetime
from typing import TYPE_CHECKING

from cli.text.formatting import DASH, age, duration, span

if TYPE_CHECKING:  # slow to import
    from schemas.api.instances import InstanceStatus
    from schemas.api.policies import DeploymentPolicy, InstanceUtilization
    from schemas.manifest.policy import UtilizationPolicy


def idle_for(status: "InstanceStatus", now: datetime) -> str:
    """How long an instance has been below the minimum of its policy; `-` if it is not, or has no policy."""
    verdict = status.utilization
    return DASH if verdict is None or verdict.low_since is None else duration((now - verdict.low_since).total_seconds())


def stops_in(status: "InstanceStatus", now: datetime) -> str:
    """When the policy will stop an instance if it stays low; `-` if unknown, or if the policy never stops any.

    With a dry run: when it would.
    """
    verdict = status.utilization
    if verdict is None or verdict.action == "notify":
        return DASH
    dry_run = " (dry run)" if verdict.dry_run else ""
    if verdict.verdict == "idle":
        return f"idle{dry_run}"
    return DASH if verdict.due_at is None else duration((verdict.due_at - now).total_seconds()) + dry_run


def action_of(policy: "UtilizationPolicy") -> str:
    """The action of a policy."""
    return f"{policy.action} (dry run)" if policy.dry_run else policy.action


def rule_of(policy: "UtilizationPolicy") -> str:
    """The rule of a policy: `below 50% for 5m (all GPUs): stop`."""
    which = {"all": "all GPUs", "any": "any GPU", "mean": "mean of the GPUs"}[policy.gpus]
    return f"below {policy.min_gpu_utilization}% for {span(policy.time_window)} ({which}): {action_of(policy)}"


def effective_policy(policy: "DeploymentPolicy | None") -> str:
    """The effective policy of a deployment, in one line."""
    if policy is None:
        return "none"
    name = "inline" if policy.origin == "inline" else f"{policy.name}, generation {policy.generation}"
    warning = f" (warning: {policy.spec.coverage_warning})" if policy.spec.coverage_warning else ""
    return f"{name}{' (the default)' if policy.origin == 'default' else ''}: {rule_of(policy.spec)}{warning}"


def verdict_fields(verdict: "InstanceUtilization", now: datetime) -> list[tuple[str, str]]:
    """The verdict on an instance, as fields."""
    due = (
        [("Idle in", duration((verdict.due_at - now).total_seconds()))]
        if verdict.due_at and verdict.due_at > now
        else []
    )
    low = [("Low for", duration((now - verdict.low_since).total_seconds()))] if verdict.low_since else []
    action = f"{verdict.action} (dry run)" if verdict.dry_run else verdict.action
    return [
        ("Policy", f"{verdict.policy or 'inline'}, generation {verdict.policy_generation}: {action}"),
        ("Verdict", f"{verdict.verdict}, for {age(verdict.since, now)} ({verdict.reason or DASH})"),
        ("Message", verdict.message or DASH),
        *low,
        *due,
    ]
