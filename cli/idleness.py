"""Policies and what they found, in the words of tables and descriptions. Pure."""

from datetime import datetime

from cli.figures import NOTHING, age, clock, span
from schemas.api.instances import InstanceStatus
from schemas.api.policies import DeploymentPolicy, InstanceUtilization
from schemas.manifest.policy import UtilizationPolicy


def idle_for(status: InstanceStatus, now: datetime) -> str:
    """For how long all that is known of an instance is below its policy's minimum; `-` where it is not, or has none."""
    judged = status.utilization
    return NOTHING if judged is None or judged.low_since is None else clock((now - judged.low_since).total_seconds())


def stops_in(status: InstanceStatus, now: datetime) -> str:
    """When its policy will find an instance idle; `-` where nobody can tell, or where the policy takes nothing away."""
    judged = status.utilization
    if judged is None or judged.dry_run or judged.action == "notify":
        return NOTHING
    if judged.verdict == "idle":
        return "idle"
    return NOTHING if judged.due_at is None else clock((judged.due_at - now).total_seconds())


def action_of(policy: UtilizationPolicy) -> str:
    """What a policy does."""
    return f"{policy.action} (dry run)" if policy.dry_run else policy.action


def rule_of(policy: UtilizationPolicy) -> str:
    """When it does it: `below 50% for 5m (all GPUs): stop`."""
    which = {"all": "all GPUs", "any": "any GPU", "mean": "mean of the GPUs"}[policy.gpus]
    return f"below {policy.min_gpu_utilization}% for {span(policy.time_window)} ({which}): {action_of(policy)}"


def applying(policy: DeploymentPolicy | None) -> str:
    """The policy that applies to a deployment, in one line."""
    if policy is None:
        return "none"
    name = "inline" if policy.origin == "inline" else f"{policy.name}, generation {policy.generation}"
    return f"{name}{' (the default)' if policy.origin == 'default' else ''}: {rule_of(policy.spec)}"


def judged(found: InstanceUtilization, now: datetime) -> list[tuple[str, str]]:
    """How an instance was judged, as fields."""
    due = [("Idle in", clock((found.due_at - now).total_seconds()))] if found.due_at and found.due_at > now else []
    low = [("Low for", clock((now - found.low_since).total_seconds()))] if found.low_since else []
    action = f"{found.action} (dry run)" if found.dry_run else found.action
    return [
        ("Policy", f"{found.policy or 'inline'}, generation {found.policy_generation}: {action}"),
        ("Verdict", f"{found.verdict}, for {age(found.since, now)} ({found.reason or NOTHING})"),
        ("Message", found.message or NOTHING),
        *low,
        *due,
    ]
