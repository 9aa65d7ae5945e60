"""The result of an audit: the invariants, checked by SQL."""

from typing import Any

from schemas.base import View


class AuditViolation(View):
    """A row that breaks an invariant."""

    invariant: str
    message: str
    evidence: dict[str, Any] = {}


class AuditView(View):
    """The names of the invariants that were checked, and the violations."""

    ok: bool
    checked: list[str]
    violations: list[AuditViolation] = []
