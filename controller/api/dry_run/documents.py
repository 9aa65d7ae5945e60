"""The manifests of one request to plan or to apply, and the checks of all of them together."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.api.dry_run.manifests import validate_all
from controller.api.dry_run.policy_effects import PolicyEffects, policy_effects
from controller.api.errors import invalid
from controller.api.named_secrets import named_secret_warnings
from controller.api.placement_names import warnings_of
from controller.api.redact_secrets import secret_warnings
from controller.api.spec_privileges import grant_warnings
from controller.domain.access.grants import Grant
from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import problems_of_secrets
from controller.store.core.database import Database
from controller.store.core.events import current_role
from controller.store.deployments.names import problems_of_names
from controller.store.policies.checks import coverage_warnings, problems_of_coverage
from controller.store.policies.webhooks import problems_of_webhook_secrets
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import Manifest, parse_manifest_objects
from schemas.manifest.policy import PolicyManifest, PolicySpec
from schemas.manifest.problems import join_path


@dataclass(frozen=True, slots=True)
class Documents:
    """Manifests by their path in the request; empty where it is the only one."""

    written: Mapping[str, Manifest]

    @property
    def deployments(self) -> dict[str, DeploymentManifest]:
        """Those of deployments."""
        return {path: one for path, one in self.written.items() if isinstance(one, DeploymentManifest)}

    @property
    def policies(self) -> dict[str, tuple[str, PolicySpec]]:
        """Names and specs of those of policies."""
        return {path: (one.name, one.spec()) for path, one in self.written.items() if isinstance(one, PolicyManifest)}


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rows say about manifests: their effect on policies, and warnings."""

    policies: PolicyEffects
    warnings: list[str]


def read_documents(objects: Sequence[dict[str, Any]]) -> Documents:
    """Parses manifests, and runs the engines' checks on them.

    Raises:
        ManifestError, SpecError, ApiError: names every problem.
    """
    parsed = parse_manifest_objects(list(objects))
    documents = Documents({join_path("", n) if len(parsed) > 1 else "": one for n, one in enumerate(parsed)})
    validate_all(documents.deployments)
    return documents


async def check_documents(
    database: Database,
    documents: Documents,
    *,
    longest_window_s: float,
    known: Redaction | None,
    keys: SecretKeys = NO_KEYS,
    granted: Collection[Grant],
) -> Checked:
    """Checks manifests against the rows, as if all of them were applied one after the other.

    Args:
        database: with the rows.
        documents: the manifests.
        longest_window_s: how long samples are kept.
        known: the values of secrets; None: the caller may not learn of any.
        keys: that open secrets.
        granted: what the caller may write beside what each may.

    Raises:
        ApiError: 400, names every problem.
    """
    secrets = known is not None
    async with database.snapshot() as connection:
        policies = await policy_effects(
            connection, documents.written, longest_window_s=longest_window_s, secrets=secrets
        )
        specs = {path: (one.name, one.spec()) for path, one in documents.deployments.items()}
        problems = [*policies.problems, *await problems_of_names(connection, documents.deployments)]
        problems += await problems_of_coverage(connection, deployments=specs, policies=documents.policies)
        if secrets:
            problems += await problems_of_secrets(connection, specs, current_role())
            problems += await problems_of_webhook_secrets(
                connection, deployments=specs, policies=documents.policies, role=current_role()
            )
        warnings = await warnings_of(connection, documents.deployments)
        if secrets:
            named = {one.name: one.spec() for one in documents.deployments.values()}
            warnings += await named_secret_warnings(connection, named, keys)
    if problems:
        raise invalid(problems)
    for one in documents.written.values():
        warnings += secret_warnings(known or NOTHING_REDACTED, one.spec(), one.name)
        warnings += coverage_warnings(one.spec(), one.name)
    for deployment in documents.deployments.values():
        warnings += grant_warnings(granted, deployment.spec(), deployment.name)
    return Checked(policies, warnings)
