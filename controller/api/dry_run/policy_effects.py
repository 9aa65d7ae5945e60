"""The effect of manifests on utilization policies: those among them count as applied. Writes nothing."""

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
from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.parse import Manifest
from schemas.manifest.policy import PolicyManifest, UtilizationPolicy
from schemas.manifest.problems import FieldProblem

PolicyChange = Literal["create", "update", "unchanged"]
Policies = Mapping[str, KnownPolicy]  # by name


@dataclass(frozen=True, slots=True)
class PolicyEffects:
    """The effect of manifests on policies.

    Attributes:
        changes: of the policies among them, by name.
        generations: of these policies until now; 0: new.
        effective: the effective policies of the deployments among them.
        problems: of the manifests.
        before: the policies that they write or name, and the default one, as they are.
        after: the same as the apply leaves them.
    """

    changes: Mapping[str, PolicyChange]
    generations: Mapping[str, int]
    effective: Mapping[str, PlannedPolicy]
    problems: tuple[FieldProblem, ...]
    before: Policies
    after: Policies


async def policy_effects(
    connection: Reader, manifests: Mapping[str, Manifest], *, longest_window_s: float, secrets: bool = True
) -> PolicyEffects:
    """The effect of applying all these manifests, given by their path in the request.

    Without `secrets` nothing tells whether the secrets exist that policies name.
    """
    written = {path: one for path, one in manifests.items() if isinstance(one, PolicyManifest)}
    specs = {path: one.spec() for path, one in manifests.items() if isinstance(one, DeploymentManifest)}
    names = {one.name for one in written.values()}
    names |= {name for spec in specs.values() if (name := named_policy(spec)) is not None}
    present = await named_and_default(connection, names)
    after = {**present, **{one.name: _after(present, one) for one in written.values()}}
    problems = [
        *await problems_of_policies(connection, written, longest_window_s=longest_window_s, secrets=secrets),
        *_second_defaults(written, after),
        *await problems_of_deployments(
            connection,
            specs,
            longest_window_s=longest_window_s,
            also_known={one.name for one in written.values()},
            secrets=secrets,
        ),
    ]
    effective = {
        manifests[path].name: policy for path, spec in specs.items() if (policy := effective_after(spec, after))
    }
    changes = {one.name: _change(present, one) for one in written.values()}
    generations = {name: present[name].generation if name in present else 0 for name in changes}
    return PolicyEffects(changes, generations, effective, tuple(problems), present, after)


def _change(present: Policies, manifest: PolicyManifest) -> PolicyChange:
    if manifest.name not in present:
        return "create"
    return "unchanged" if present[manifest.name].spec == manifest.spec() else "update"


def _after(present: Policies, manifest: PolicyManifest) -> KnownPolicy:
    before = present.get(manifest.name)
    if before is None:
        return KnownPolicy(f"new {manifest.name}", 1, manifest.spec())
    generation = before.generation + (_change(present, manifest) != "unchanged")
    return KnownPolicy(before.uid, generation, manifest.spec())


def _second_defaults(written: Mapping[str, PolicyManifest], after: Policies) -> list[FieldProblem]:
    defaults = {name for name, one in after.items() if one.spec.default}
    return [
        problem_of_second_default(path, min(defaults - {manifest.name}))
        for path, manifest in written.items()
        if manifest.default and defaults != {manifest.name}
    ]


def effective_after(spec: DeploymentSpec, policies: Policies) -> PlannedPolicy | None:
    """The effective policy of a deployment that is not written yet, as `store/policies/effective.py` defines it."""
    own = spec.utilization_policy
    if isinstance(own, UtilizationPolicy):
        return PlannedPolicy(origin="inline", spec=own)
    if isinstance(own, str):
        return PlannedPolicy(origin="named", name=own, spec=policies[own].spec.bare()) if own in policies else None
    default = next((name for name, one in policies.items() if one.spec.default), None)
    if default is None or spec.resources.gpus == 0:
        return None
    return PlannedPolicy(origin="default", name=default, spec=policies[default].spec.bare())
