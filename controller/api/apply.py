"""`POST /apply`: several manifests in one transaction, all of them or none; and their checks, which plans share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT, ApiContext
from controller.api.dry_run.policy_effects import policy_problems
from controller.api.errors import field_problem, invalid
from controller.api.route import Access, Route
from controller.api.spec_checks import (
    coverage_warnings,
    grant_warnings,
    granted_to,
    named_secret_warnings,
    placement_warnings,
    secret_warnings,
)
from controller.domain.access.grants import Grant
from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.engines.arguments.privileges import ungranted
from controller.engines.base import SpecError
from controller.engines.registry import engine_for, validate
from controller.scheduling.estimate import input_hash
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import problems_of_secrets
from controller.store.core.database import Reader
from controller.store.core.events import current_role
from controller.store.deployments.apply import Document, Expected, apply_all, refuse_changes, retried
from controller.store.deployments.specs import problems_of_names
from controller.store.policies.checks import problems_of_coverage
from controller.store.policies.webhooks import problems_of_webhook_secrets
from schemas.api.apply import AppliedObject, ApplyView
from schemas.api.requests import ApplyBody
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_manifest_objects
from schemas.manifest.policy import PolicySpec
from schemas.manifest.problems import FieldProblem, join_path


@dataclass(frozen=True, slots=True)
class Documents:
    """The manifests of one request: names and specs by their path in it, which is empty for the only one."""

    written: Mapping[str, tuple[str, DeploymentSpec | PolicySpec]]

    @property
    def deployments(self) -> dict[str, tuple[str, DeploymentSpec]]:
        """Those of deployments."""
        return {path: (name, one) for path, (name, one) in self.written.items() if isinstance(one, DeploymentSpec)}

    @property
    def policies(self) -> dict[str, tuple[str, PolicySpec]]:
        """Those of policies."""
        return {path: (name, one) for path, (name, one) in self.written.items() if isinstance(one, PolicySpec)}


async def post(request: web.Request) -> web.Response:
    """`POST /apply`."""
    body = await read_model(request, ApplyBody)
    documents = read_documents(body.manifests)
    warnings, applied = await _apply(request.app[CONTEXT], documents, body, granted_to(request))
    return json_response(ApplyView(items=applied, warnings=warnings))


@retried
async def _apply(
    context: ApiContext, documents: Documents, body: ApplyBody, granted: Collection[Grant]
) -> tuple[list[str], list[AppliedObject]]:
    """Checks and applies in one transaction; returns the warnings, and what was done."""
    written = [
        Document(path, name, spec, input_hash(spec, engine_for(spec)), ungranted(granted, spec))
        if isinstance(spec, DeploymentSpec)
        else Document(path, name, spec)
        for path, (name, spec) in documents.written.items()
    ]

    async def check(connection: Reader) -> list[str]:
        return await check_documents(
            connection,
            documents,
            longest_window_s=context.longest_window_s,
            known=context.known_secrets.redaction(),
            keys=context.secret_keys,
            granted=granted,
        )

    async def check_unlocked(connection: Reader) -> None:
        await check(connection)
        await refuse_changes(connection, written)

    async with context.database.checked_transaction(check_unlocked) as connection:
        warnings = await check(connection)
        expected: Expected = {"policy": body.expected.policies, "deployment": body.expected.deployments}
        applied = await apply_all(connection, written, expected, longest_window_s=context.longest_window_s)
    return warnings, applied


def read_documents(objects: Sequence[dict[str, Any]]) -> Documents:
    """Parses manifests, and runs the engines' checks on them.

    Raises:
        ManifestError, SpecError, ApiError: names every problem.
    """
    parsed = parse_manifest_objects(list(objects))
    paths = [join_path("", number) for number in range(len(parsed))] if len(parsed) > 1 else [""]
    documents = Documents({path: (one.name, one.spec()) for path, one in zip(paths, parsed, strict=True)})
    validate_all({path: spec for path, (_, spec) in documents.deployments.items()})
    return documents


def validate_all(specs: Mapping[str, DeploymentSpec]) -> None:
    """Runs the engines' checks on specs, given by their path in the request.

    Raises:
        ApiError: 400, names every problem.
        SpecError: the same for a single manifest, whose path is empty.
    """
    problems: list[FieldProblem] = []
    for path, spec in specs.items():
        try:
            validate(spec)
        except SpecError as error:
            if not path:
                raise
            problems.append(_problem_at(path, error))
    if problems:
        raise invalid(problems)


def _problem_at(path: str, error: SpecError) -> FieldProblem:
    problem = field_problem(error)
    return FieldProblem(join_path(path, problem.path), problem.message)


async def check_documents(
    connection: Reader,
    documents: Documents,
    *,
    longest_window_s: float,
    known: Redaction | None,
    keys: SecretKeys = NO_KEYS,
    granted: Collection[Grant],
) -> list[str]:
    """Checks manifests against the rows, as if all of them were applied one after the other; returns the warnings.

    Args:
        connection: in a transaction.
        documents: the manifests.
        longest_window_s: how long samples are kept.
        known: the values of secrets; None: the caller may not learn of any.
        keys: that open secrets.
        granted: what the caller may write beside what each may.

    Raises:
        ApiError: 400, names every problem.
    """
    deployments, policies, secrets = documents.deployments, documents.policies, known is not None
    watched = bool(policies) or any(spec.utilization_policy is not None for _, spec in deployments.values())
    problems: list[FieldProblem] = []
    if watched:
        problems += await policy_problems(
            connection, deployments, policies, longest_window_s=longest_window_s, secrets=secrets
        )
    problems += await problems_of_names(connection, deployments)
    if watched:
        problems += await problems_of_coverage(connection, deployments=deployments, policies=policies)
    if secrets and any(spec.secrets for _, spec in deployments.values()):
        problems += await problems_of_secrets(connection, deployments, current_role())
    if secrets and watched:
        problems += await problems_of_webhook_secrets(
            connection, deployments=deployments, policies=policies, role=current_role()
        )
    warnings = await _placement_warnings(connection, deployments)
    if secrets:
        warnings += await named_secret_warnings(connection, dict(deployments.values()), keys)
    if problems:
        raise invalid(problems)
    for name, written in documents.written.values():
        warnings += secret_warnings(known or NOTHING_REDACTED, written, name)
        warnings += coverage_warnings(written, name)
    for name, spec in deployments.values():
        warnings += grant_warnings(granted, spec, name)
    return warnings


async def _placement_warnings(connection: Reader, deployments: Mapping[str, tuple[str, DeploymentSpec]]) -> list[str]:
    """Warns of unknown workers and GPUs.

    Raises:
        ApiError: 400, names every field with an ambiguous name.
    """
    found: list[str] = []
    problems: list[FieldProblem] = []
    for path, (name, spec) in deployments.items():
        try:
            found += await placement_warnings(connection, spec, name)
        except SpecError as error:
            problems.append(_problem_at(path, error))
    if problems:
        raise invalid(problems)
    return found


ROUTES: Final = (
    Route(
        "POST", "/api/v1/apply", post, Access.OPERATE, "Apply manifests together: all of them, or none", "apply",
        ApplyView, ApplyBody,
    ),
)  # fmt: skip
