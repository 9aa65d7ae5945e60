"""What speaks against a policy beside its own fields: what it names must exist, and its window must be on record."""

from collections.abc import Collection, Mapping
from typing import Final

from controller.store.views.paging import Reader
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import NO_POLICY, UtilizationPolicy
from schemas.manifest.problems import FieldProblem, join_path

_HOUR_S: Final = 3600
_FIELD: Final = "utilization_policy"


def named_policy(spec: DeploymentSpec) -> str | None:
    """The policy that a deployment refers to by name."""
    policy = spec.utilization_policy
    return policy if isinstance(policy, str) and policy != NO_POLICY else None


async def problems_of_deployments(
    connection: Reader,
    specs: Mapping[str, DeploymentSpec],
    *,
    longest_window_s: float,
    also_known: Collection[str] = (),
) -> list[FieldProblem]:
    """What speaks against the policies of deployments.

    Args:
        connection: where.
        specs: by the path at which each was written; empty where it is the whole.
        longest_window_s: for how long samples are kept.
        also_known: names of policies that will be there by then.
    """
    names = {path: name for path, spec in specs.items() if (name := named_policy(spec)) is not None}
    query = "select name from policies where name = any($1)"
    known = {row["name"] for row in await connection.fetch(query, sorted(set(names.values())))} if names else set()
    problems = [
        FieldProblem(
            join_path(path, _FIELD), f"no policy is named {name!r}; apply it first (`gpuward get policies` lists them)"
        )
        for path, name in names.items()
        if name not in known and name not in also_known
    ]
    inline = {
        join_path(path, _FIELD): spec.utilization_policy
        for path, spec in specs.items()
        if isinstance(spec.utilization_policy, UtilizationPolicy)
    }
    return [*problems, *await problems_of_policies(connection, inline, longest_window_s=longest_window_s)]


async def problems_of_policies(
    connection: Reader, policies: Mapping[str, UtilizationPolicy], *, longest_window_s: float
) -> list[FieldProblem]:
    """What speaks against policies, by the path at which each was written."""
    problems = [
        FieldProblem(
            join_path(path, "time_window"),
            f"{policy.time_window} s are longer than samples are kept ({longest_window_s / _HOUR_S:g} h); "
            "write less, or have the controller keep them for longer (GPUWARD_KEEP_SAMPLES_H)",
        )
        for path, policy in policies.items()
        if policy.time_window > longest_window_s
    ]
    secrets = {path: policy.webhook.secret for path, policy in policies.items() if policy.webhook is not None}
    query = "select name from secrets where name = any($1)"
    stored = {row["name"] for row in await connection.fetch(query, sorted(set(secrets.values())))} if secrets else set()
    problems += [
        FieldProblem(
            join_path(join_path(path, "webhook"), "secret"),
            f"no secret is named {name!r}, with which the webhook's messages are signed; "
            f"store one: gpuward secret set {name}",
        )
        for path, name in secrets.items()
        if name not in stored
    ]
    return problems


def problem_of_second_default(path: str, present: str) -> FieldProblem:
    """A cluster has one default."""
    message = f"{present!r} is the default policy, and there is one at most; apply that with default: false before"
    return FieldProblem(join_path(path, "default"), message)
