"""The effect of manifests on utilization policies, as if they were applied. Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controller.store.core.database import Reader
from controller.store.policies.checks import (
    named_policy,
    problem_of_second_default,
    problems_of_deployments,
    problems_of_policies,
)
from controller.store.views.policies import KnownPolicy, named_and_default
from schemas.api.policies import PlannedPolicy
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec, UtilizationPolicy
from schemas.manifest.problems import FieldProblem

PolicyChange = Literal["create", "update", "unchanged"]
Policies = Mapping[str, KnownPolicy]  # by name


@dataclass(frozen=True, slots=True)
class PolicyEffects:
    """The effect of manifests on policies.

    Attributes:
        changes: what happens to each policy among the manifests, by name.
        generations: their present generations; 0: new.
        effective: the effective policies of the deployments among the manifests.
        before: the written and named policies, and the default one, at present.
        after: the same policies after the apply.
    """

    changes: Mapping[str, PolicyChange]
    generations: Mapping[str, int]
    effective: Mapping[str, PlannedPolicy]
    before: Policies
    after: Policies


async def policy_effects(
    connection: Reader, specs: Mapping[str, DeploymentSpec], written: Mapping[str, PolicySpec]
) -> PolicyEffects:
    present = await named_and_default(connection, {*written, *_named(specs)})
    after = _after(present, written)
    changes = {name: _change(present.get(name), spec) for name, spec in written.items()}
    generations = {name: present[name].generation if name in present else 0 for name in written}
    effective = {name: policy for name, spec in specs.items() if (policy := effective_after(spec, after))}
    return PolicyEffects(changes, generations, effective, present, after)


async def policy_problems(
    connection: Reader,
    deployments: Mapping[str, tuple[str, DeploymentSpec]],
    policies: Mapping[str, tuple[str, PolicySpec]],
    *,
    longest_window_s: float,
    secrets: bool = True,
) -> list[FieldProblem]:
    """Problems of manifests, given as names and specs by path. Without `secrets`, missing secrets are no problem."""
    specs, written = {path: spec for path, (_, spec) in deployments.items()}, dict(policies.values())
    problems = await problems_of_policies(
        connection,
        {path: spec for path, (_, spec) in policies.items()},
        longest_window_s=longest_window_s,
        secrets=secrets,
    )
    if any(spec.default for spec in written.values()):
        after = _after(await named_and_default(connection, written), written)
        defaults = {name for name, policy in after.items() if policy.spec.default}
        problems += [
            problem_of_second_default(path, min(defaults - {name}))
            for path, (name, spec) in policies.items()
            if spec.default and defaults != {name}
        ]
    return problems + await problems_of_deployments(
        connection, specs, longest_window_s=longest_window_s, also_known=written.keys(), secrets=secrets
    )


def _named(specs: Mapping[str, DeploymentSpec]) -> set[str]:
    return {name for spec in specs.values() if (name := named_policy(spec)) is not None}


def _change(present: KnownPolicy | None, spec: PolicySpec) -> PolicyChange:
    if present is None:
        return "create"
    return "unchanged" if present.spec == spec else "update"


def _after(present: Policies, written: Mapping[str, PolicySpec]) -> dict[str, KnownPolicy]:
    after = dict(present)
    for name, spec in written.items():
        before = present.get(name)
        if before is None:
            after[name] = KnownPolicy(f"new {name}", 1, spec)
        else:
            after[name] = KnownPolicy(before.uid, before.generation + (_change(before, spec) != "unchanged"), spec)
    return after


def effective_after(spec: DeploymentSpec, policies: Policies) -> PlannedPolicy | None:
    """The effective policy of an unwritten deployment, by the rule of `store/policies/effective.py`."""
    own = spec.utilization_policy
    if isinstance(own, UtilizationPolicy):
        return PlannedPolicy(origin="inline", spec=own)
    if isinstance(own, str):
        return PlannedPolicy(origin="named", name=own, spec=policies[own].spec.bare()) if own in policies else None
    default = next((name for name, policy in policies.items() if policy.spec.default), None)
    if default is None or spec.resources.gpus == 0:
        return None
    return PlannedPolicy(origin="default", name=default, spec=policies[default].spec.bare())
