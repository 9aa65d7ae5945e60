"""Checks of policies beyond their own fields: references must exist, and windows must not exceed the retention.

A `min_coverage` that is too small is refused where it is new, and kept where an earlier version stored it.
"""

from collections.abc import Collection, Mapping
from typing import Final

from controller.store.core.database import Reader
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import LEAST_COVERAGE, NO_POLICY, UtilizationPolicy
from schemas.manifest.problems import FieldProblem, join_path

_HOUR_S: Final = 3600
_FIELD: Final = "utilization_policy"
_COVERAGE_OF_POLICIES: Final = (
    "select name, (spec ->> 'min_coverage')::float8 as coverage from policies where name = any($1)"
)
_COVERAGE_OF_DEPLOYMENTS: Final = """
    select name, (spec #>> '{utilization_policy,min_coverage}')::float8 as coverage
      from deployments where deleted_at is null and name = any($1)"""


def named_policy(spec: DeploymentSpec) -> str | None:
    """Returns the name by which a deployment refers to a policy."""
    policy = spec.utilization_policy
    return policy if isinstance(policy, str) and policy != NO_POLICY else None


async def problems_of_deployments(
    connection: Reader,
    specs: Mapping[str, DeploymentSpec],
    *,
    longest_window_s: float,
    also_known: Collection[str] = (),
    secrets: bool = True,
) -> list[FieldProblem]:
    """Problems of the policies of deployments, given by their path in the manifest.

    `longest_window_s`: retention of samples. `also_known`: names of policies that will exist by then. `secrets`: check
    that named secrets exist.
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
    return [
        *problems,
        *await problems_of_policies(connection, inline, longest_window_s=longest_window_s, secrets=secrets),
    ]


async def problems_of_policies(
    connection: Reader, policies: Mapping[str, UtilizationPolicy], *, longest_window_s: float, secrets: bool = True
) -> list[FieldProblem]:
    """Problems of policies, given by their path in the manifest. `secrets`: check that named secrets exist."""
    problems = [
        FieldProblem(
            join_path(path, "time_window"),
            f"must be at most {longest_window_s / _HOUR_S:g}h, for which samples are kept, got {policy.time_window} s; "
            "write a shorter one, or keep samples for longer (GPUWARD_KEEP_SAMPLES_H)",
        )
        for path, policy in policies.items()
        if policy.time_window > longest_window_s
    ]
    named = {path: policy.webhook.secret for path, policy in policies.items() if policy.webhook is not None and secrets}
    query = "select name from secrets where name = any($1)"
    stored = {row["name"] for row in await connection.fetch(query, sorted(set(named.values())))} if named else set()
    problems += [
        FieldProblem(
            join_path(join_path(path, "webhook"), "secret"),
            f"no secret is named {name!r}; store the webhook's signing secret: gpuward secret set {name}",
        )
        for path, name in named.items()
        if name not in stored
    ]
    return problems


async def problems_of_coverage(
    connection: Reader,
    *,
    deployments: Mapping[str, tuple[str, DeploymentSpec]],
    policies: Mapping[str, tuple[str, UtilizationPolicy]],
) -> list[FieldProblem]:
    """Problems of each new `min_coverage` that is too small. A stored one acts as the least that is allowed.

    `deployments`: names and specs by path in the manifest, of which inline policies are checked.
    """
    inline = {
        join_path(path, _FIELD): (name, spec.utilization_policy)
        for path, (name, spec) in deployments.items()
        if isinstance(spec.utilization_policy, UtilizationPolicy)
    }
    problems: list[FieldProblem] = []
    for written, query in ((inline, _COVERAGE_OF_DEPLOYMENTS), (policies, _COVERAGE_OF_POLICIES)):
        low = {path: (name, policy.min_coverage) for path, (name, policy) in written.items() if policy.coverage_warning}
        names = sorted({name for name, _ in low.values()})
        stored = {row["name"]: row["coverage"] for row in await connection.fetch(query, names)} if names else {}
        problems += [
            FieldProblem(join_path(path, "min_coverage"), f"must be {LEAST_COVERAGE:g} to 1, got {share:g}")
            for path, (name, share) in low.items()
            if stored.get(name) != share
        ]
    return problems


def problem_of_second_default(path: str, present: str) -> FieldProblem:
    message = f"{present!r} is the default policy already; apply that one with default: false first"
    return FieldProblem(join_path(path, "default"), message)
