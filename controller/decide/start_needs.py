"""The needs of a start beyond capacity. An instance whose start cannot succeed must not preempt others. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from controller.domain.access.secret_scopes import SECRET_REFUSALS, LacksSecret, SecretScope, missing_secret
from controller.domain.admission import RefusedStart
from controller.domain.restart_delays import RestartSettings
from schemas.manifest.deployment import DeploymentSpec, SecretRef

# Refusals that pass by themselves, so that the same start may succeed later.
_PASSING: Final = frozenset({"", "refused", "claim_conflict", "shutting_down", "old_term", "old_epoch"})
_NEEDS: Final = frozenset(SECRET_REFUSALS)  # checked again by each pass


class KnownSecret(Protocol):
    """A stored secret as far as a start depends on it."""

    @property
    def scope(self) -> SecretScope: ...
    @property
    def problem(self) -> str:
        """Why it has no value; empty if it has a value."""


@dataclass(frozen=True, slots=True)
class UnmetNeed:
    """Something without which every start fails, wherever it is placed."""

    code: LacksSecret
    path: str  # of the field in the spec
    secret: str  # its name
    message: str  # what is wrong, and what to do


def secret_names(spec: DeploymentSpec) -> dict[str, str]:
    """The names of secrets that a spec refers to, by environment variable."""
    return {variable: value.secret for variable, value in spec.env.items() if isinstance(value, SecretRef)}


def unmet_needs(deployment: str, names: Mapping[str, str], secrets: Mapping[str, KnownSecret]) -> list[UnmetNeed]:
    """The unmet needs of a start of this deployment, one entry for each secret.

    `names`: of its secrets, by environment variable. `secrets`: the existing secrets, by name.
    """
    variables: dict[str, str] = {}
    for variable, name in names.items():
        variables.setdefault(name, variable)
    missing: list[UnmetNeed] = []
    unusable: list[UnmetNeed] = []
    for name in sorted(variables):
        path, secret = f"env.{variables[name]}", secrets.get(name)
        if secret is None:
            missing.append(UnmetNeed(LacksSecret.MISSING, path, name, missing_secret(name)))
        elif secret.problem:
            unusable.append(UnmetNeed(LacksSecret.UNREADABLE, path, name, secret.problem))
        elif text := secret.scope.refusal(name, deployment, ""):
            unusable.append(UnmetNeed(LacksSecret.FORBIDDEN, path, name, text))
    return [*missing, *unusable]


def why_no_preemption(
    needs: list[UnmetNeed], refused: RefusedStart | None, failures: int, settings: RestartSettings
) -> str:
    """Why an instance that may preempt does not now, since its start would fail; empty: it may.

    `refused`: its last start, if it was refused. `failures`: of its starts in a row.
    """
    if needs:
        return needs[0].message
    if refused is None:
        return ""
    text = refused.message or refused.code
    if refused.code not in _PASSING | _NEEDS:
        if refused.changed:
            return ""
        return f"worker {refused.worker} refused its start: {text}; this has to change there, or the deployment"
    # Without figures that change with each pass: every change of the message is written and announced.
    delayed = refusal_left_s(refused, failures, settings) > 0
    return f"its last start was refused, and its delay lasts: {text}" if delayed else ""


def refusal_left_s(refused: RefusedStart | None, failures: int, settings: RestartSettings) -> float:
    """Seconds for which a refusal that passes by itself still keeps an instance from preempting."""
    if refused is None or refused.code not in _PASSING | _NEEDS:
        return 0.0
    return max(settings.delay_s(max(failures, 1)) - refused.ago_s, 0.0)
