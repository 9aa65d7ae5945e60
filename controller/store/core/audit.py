"""The audit: `audit.sql` has one named query for each invariant, and its rows are violations. Reads only."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from controller.store.core.database import Reader
from controller.store.core.sql_blocks import read_blocks
from schemas.api.audit import AuditView, AuditViolation

MAX_ROWS: Final = 100  # of one invariant; the first ones are enough to report a broken ledger
INVARIANTS: Final = read_blocks(Path(__file__).parent / "audit.sql")


async def audit(connection: Reader) -> AuditView:
    """Checks every invariant; the connection must be in one REPEATABLE READ transaction (`Database.snapshot`)."""
    violations: list[AuditViolation] = []
    for invariant in INVARIANTS:
        for row in await connection.fetch(f"{invariant.query} limit {MAX_ROWS}"):
            evidence = plain(dict(row))
            shown = ", ".join(f"{key}={value}" for key, value in evidence.items())
            violations.append(
                AuditViolation(
                    invariant=invariant.name, message=f"broken: {invariant.text}: {shown}", evidence=evidence
                )
            )
    return AuditView(ok=not violations, checked=[i.name for i in INVARIANTS], violations=violations)


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with times as text."""
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
