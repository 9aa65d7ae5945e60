"""What a spec is checked for beside its schema and its engine, and what its writer is warned of.

Applies, plans and dry runs share these checks. Administrators may write anything. Operators need a grant for what gives
a process power over its host. Viewers, which may only plan, have no grant, and are warned of no secret: a guess must
not be confirmed to them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.domain.access.grants import EVERY_GRANT, Grant
from controller.domain.access.redaction import Redaction, Use
from controller.engines.arguments.privileges import next_change_needs
from controller.engines.base import SpecError
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import closed_secrets
from controller.store.core.database import Reader
from controller.store.core.refusals import RETIRED
from controller.store.placement.plan_reads import named_devices
from schemas.fields import Strict
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import UtilizationPolicy

_MOST_WARNINGS: Final = 20


def granted_to(request: web.Request) -> frozenset[Grant]:
    """What this request's caller may write beside what each may."""
    role = request[PRINCIPAL].role
    if role == "admin":
        return EVERY_GRANT
    return frozenset() if role == "viewer" else request.app[CONTEXT].operators_may


def grant_warnings(granted: Collection[Grant], spec: DeploymentSpec, name: str = "") -> list[str]:
    """Warns of what the caller may repeat as it is stored, and not change. `name` is the deployment's, among several.

    A change by a caller that lacks a grant, or with retired args, is refused: this warns of nothing that just changed.
    """
    needs = next_change_needs(spec, granted)
    retired = [f"args.{arg}: {RETIRED}" for arg in spec.retired_args]
    return _lines(name, [*([needs] if needs else []), *retired], "retired args")


def coverage_warnings(spec: DeploymentSpec | UtilizationPolicy, name: str = "") -> list[str]:
    """Warns of a stored `min_coverage` that acts as a larger one. `name` is the object's, where several are checked."""
    policy = spec.utilization_policy if isinstance(spec, DeploymentSpec) else spec
    if not isinstance(policy, UtilizationPolicy) or not policy.coverage_warning:
        return []
    path = "utilization_policy." if isinstance(spec, DeploymentSpec) else ""
    return _lines(name, [path + policy.coverage_warning], "")


async def placement_warnings(connection: Reader, spec: DeploymentSpec, name: str = "") -> list[str]:
    """Warns of names that mean no worker and no GPU now. `name` is the deployment's, where several are checked.

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
        *((f"placement.workers: unknown worker {one}", placement.all_of) for one in dict.fromkeys(placement.workers)
          if one not in known.workers),
        *((f"placement.gpus: unknown GPU {one}", all_gpus) for one in placement.gpus if one not in known.gpus),
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

    Args:
        connection: to read from.
        specs: by the name of the deployment.
        keys: of this controller.
        named: lines begin with the deployment, since several are checked.
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
    """Warns of fields that hold the value of a secret. `name` is the object's, where several are checked."""
    if not redaction:
        return []
    uses = redaction.uses(spec.model_dump(mode="json"))
    return _lines(name, [_warning(use) for use in uses], "fields hold values of secrets")


def _lines(name: str, texts: Sequence[str], what: str) -> list[str]:
    """The first warnings, each after the object's name if it has one, and the number of the others."""
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
