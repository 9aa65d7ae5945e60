"""`POST /apply`: several manifests in one transaction, all or none; and the checks of specs, which plans share.

Administrators may write anything. Operators need a grant for fields that give a process power over its host. Viewers,
who only plan, have no grant and get no warning of secrets, because a warning would confirm a guessed value.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT, PRINCIPAL, ApiContext
from controller.api.dry_run.policy_effects import policy_problems
from controller.api.errors import field_problem, invalid
from controller.api.route import Access, Route
from controller.domain.access.grants import EVERY_GRANT, Grant
from controller.domain.access.redaction import NOTHING_REDACTED, Redaction, Use
from controller.engines.arguments.privileges import next_change_needs, ungranted
from controller.engines.base import SpecError
from controller.engines.registry import engine_for, validate
from controller.scheduling.estimate import input_hash
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import closed_secrets, problems_of_secrets
from controller.store.core.database import Reader
from controller.store.core.events import current_role
from controller.store.core.refusals import RETIRED
from controller.store.deployments.apply import Document, Expected, apply_all, refuse_changes, retried
from controller.store.deployments.specs import problems_of_names
from controller.store.placement.plan_reads import named_devices
from controller.store.policies.checks import problems_of_coverage
from controller.store.policies.webhooks import problems_of_webhook_secrets
from schemas.api.apply import AppliedObject, ApplyView
from schemas.api.requests import ApplyBody
from schemas.fields import Strict
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_manifest_objects
from schemas.manifest.policy import PolicySpec, UtilizationPolicy
from schemas.manifest.problems import FieldProblem, join_path

_MOST_WARNINGS: Final = 20


@dataclass(frozen=True, slots=True)
class Documents:
    """The manifests of one request: names and specs by path in the request. The path of a single manifest is empty."""

    written: Mapping[str, tuple[str, DeploymentSpec | PolicySpec]]

    @property
    def deployments(self) -> dict[str, tuple[str, DeploymentSpec]]:
        return {path: (name, spec) for path, (name, spec) in self.written.items() if isinstance(spec, DeploymentSpec)}

    @property
    def policies(self) -> dict[str, tuple[str, PolicySpec]]:
        return {path: (name, spec) for path, (name, spec) in self.written.items() if isinstance(spec, PolicySpec)}


async def post(request: web.Request) -> web.Response:
    body = await read_model(request, ApplyBody)
    documents = read_documents(body.manifests)
    warnings, applied = await _apply(request.app[CONTEXT], documents, body, granted_to(request))
    return json_response(ApplyView(items=applied, warnings=warnings))


@retried
async def _apply(
    context: ApiContext, documents: Documents, body: ApplyBody, granted: Collection[Grant]
) -> tuple[list[str], list[AppliedObject]]:
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

    async def refuse_invalid(connection: Reader) -> None:
        await check(connection)
        await refuse_changes(connection, written)

    async with context.database.transaction_or_refusal(refuse_invalid) as connection:
        warnings = await check(connection)
        expected: Expected = {"policy": body.expected.policies, "deployment": body.expected.deployments}
        applied = await apply_all(connection, written, expected, longest_window_s=context.longest_window_s)
    return warnings, applied


def read_documents(objects: Sequence[dict[str, Any]]) -> Documents:
    """Parses manifests and runs the engines' checks.

    Raises:
        ManifestError, SpecError, ApiError: names every problem.
    """
    parsed = parse_manifest_objects(list(objects))
    paths = [join_path("", number) for number in range(len(parsed))] if len(parsed) > 1 else [""]
    documents = Documents(
        {path: (manifest.name, manifest.spec()) for path, manifest in zip(paths, parsed, strict=True)}
    )
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
    """Checks manifests against the rows, as if all were applied in order; returns the warnings.

    It names all problems of all manifests at once. The store checks each object again after it has locked what the
    object refers to, since other writes may come between, and since a deployment or policy can be written without this.

    Args:
        connection: a transaction's.
        documents: the manifests of one request.
        longest_window_s: how long samples are kept, which bounds a policy's window.
        known: the values of secrets; None: the caller may learn of none.
        keys: decrypt secrets.
        granted: the caller's grants.

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
    warnings, ambiguous = await _check_placements(connection, deployments)
    problems += ambiguous
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


async def _check_placements(
    connection: Reader, deployments: Mapping[str, tuple[str, DeploymentSpec]]
) -> tuple[list[str], list[FieldProblem]]:
    """Returns warnings of unknown workers and GPUs, and the problems: names that mean several GPUs."""
    warnings: list[str] = []
    problems: list[FieldProblem] = []
    for path, (name, spec) in deployments.items():
        try:
            warnings += await placement_warnings(connection, spec, name)
        except SpecError as error:
            problems.append(_problem_at(path, error))
    return warnings, problems


def granted_to(request: web.Request) -> frozenset[Grant]:
    role = request[PRINCIPAL].role
    if role == "admin":
        return EVERY_GRANT
    return frozenset() if role == "viewer" else request.app[CONTEXT].operators_may


def grant_warnings(granted: Collection[Grant], spec: DeploymentSpec, name: str = "") -> list[str]:
    """Warns of stored fields that the caller may repeat but not change. `name`: the deployment, among several.

    A change without the grant, or with retired args, is refused before, so changed fields need no warning.
    """
    needs = next_change_needs(spec, granted)
    retired = [f"args.{arg}: {RETIRED}" for arg in spec.retired_args]
    return _lines(name, [*([needs] if needs else []), *retired], "retired args")


def coverage_warnings(spec: DeploymentSpec | UtilizationPolicy, name: str = "") -> list[str]:
    """Warns of a stored `min_coverage` that acts as a larger one. `name`: the object, among several."""
    policy = spec.utilization_policy if isinstance(spec, DeploymentSpec) else spec
    if not isinstance(policy, UtilizationPolicy) or not policy.coverage_warning:
        return []
    path = "utilization_policy." if isinstance(spec, DeploymentSpec) else ""
    return _lines(name, [path + policy.coverage_warning], "")


async def placement_warnings(connection: Reader, spec: DeploymentSpec, name: str = "") -> list[str]:
    """Warns of names that match no worker and no GPU now. `name`: the deployment, among several.

    Raises:
        SpecError: a name means several GPUs; the message has their UUIDs.
    """
    placement = spec.placement
    if not placement.workers and not placement.gpus:
        return []
    known = await named_devices(connection, placement.workers, placement.gpus)
    for gpu, meant in known.gpus.items():
        if len(meant) > 1:
            choice = " or ".join(f"{uuid} ({vendor})" for uuid, vendor in meant)
            raise SpecError(f"placement.gpus: {gpu} means {choice}; write the UUID")
    all_gpus = spec.takes_all_named_gpus
    unknown = [
        *((f"placement.workers: unknown worker {worker}", placement.all_of)
          for worker in dict.fromkeys(placement.workers) if worker not in known.workers),
        *((f"placement.gpus: unknown GPU {gpu}", all_gpus) for gpu in placement.gpus if gpu not in known.gpus),
    ]  # fmt: skip
    texts = [
        f"{text}; {'instances stay pending without it' if needed else 'the others are used'}"
        for text, needed in unknown
    ]
    return _lines(name, texts, "unknown names")


async def named_secret_warnings(
    connection: Reader, specs: Mapping[str, DeploymentSpec], keys: SecretKeys = NO_KEYS, *, named: bool = True
) -> list[str]:
    """Warns of each variable whose secret does not exist or cannot be read: its instances would stay pending.

    `specs`: keyed by deployment. `named`: each warning names its deployment.
    """
    references = [
        (deployment, variable, secret)
        for deployment, spec in specs.items()
        for variable, secret in spec.secrets.items()
    ]
    if not references:
        return []
    closed = await closed_secrets(connection, {secret for *_, secret in references}, keys)
    lines = [
        f"{f'{deployment}: ' if named else ''}env.{variable}: {closed[secret]}; instances stay pending without it"
        for deployment, variable, secret in references
        if secret in closed
    ]
    return _lines("", lines, "variables name secrets that cannot be had")


def secret_warnings(redaction: Redaction, spec: Strict, name: str = "") -> list[str]:
    """Warns of fields that hold the value of a secret. `name`: the object, among several."""
    if not redaction:
        return []
    uses = redaction.uses(spec.model_dump(mode="json"))
    return _lines(name, [_warning(use) for use in uses], "fields hold values of secrets")


def _lines(name: str, texts: Sequence[str], what: str) -> list[str]:
    """The first warnings, prefixed with the object's name if it has one, and the number of remaining warnings."""
    more = len(texts) - _MOST_WARNINGS
    shown = texts if more <= 0 else [*texts[:_MOST_WARNINGS], f"{more} more {what}"]
    return [f"{name}: {text}".removeprefix(": ") for text in shown]


def _warning(use: Use) -> str:
    field = use.path.partition(".")[0].partition("[")[0]
    if field == "env":
        fix = "name it instead" if use.entire else "give it a variable of its own"
        return f"{use.path}: {_holds(use)} in plain text; {fix}: {{secret: {use.secret}}}"
    if field in ("args", "command"):
        fix = f"put it into env: {{NAME: {{secret: {use.secret}}}}}"
        return f"{use.path}: {_holds(use)}, and every account of a host can read arguments; {fix}"
    return f"{use.path}: {_holds(use)} in plain text; take it out"


def _holds(use: Use) -> str:
    return f"{'is' if use.entire else 'contains'} the value of secret {use.secret}"


ROUTES: Final = (
    Route(
        "POST", "/api/v1/apply", post, Access.OPERATE, "Apply manifests together: all of them, or none", "apply",
        ApplyView, ApplyBody,
    ),
)  # fmt: skip
