"""The result of an audit: the invariants, checked by SQL."""

from typing import Any

from schemas.api.view import View


class AuditViolation(View, frozen=True, kw_only=True):
    """A row that breaks an invariant."""

    invariant: str
    message: str
    evidence: dict[str, Any] = {}


class AuditView(View, frozen=True, kw_only=True):
    """The names of the invariants that were checked, and the violations."""

    ok: bool
    checked: list[str]
    violations: list[AuditViolation] = []


class LedgerRepair(View, frozen=True, kw_only=True):
    """One change that mends the ledger: of which object, with its values before and after."""

    invariant: str
    object: str
    before: dict[str, Any]
    after: dict[str, Any]


class UnmendedViolation(AuditViolation, frozen=True, kw_only=True):
    """A violation that is left, since to mend it would be a guess. `way_out`: what an operator does about it."""

    way_out: str


class RepairView(View, frozen=True, kw_only=True):
    """What a repair found, what it changed (with `dry_run`: what it would change), and what is left.

    `mended` holds the first 1000 changes; `changes` is the number of all.
    """

    ok: bool
    dry_run: bool = False
    found: list[AuditViolation] = []
    changes: int = 0
    mended: list[LedgerRepair] = []
    left: list[UnmendedViolation] = []
