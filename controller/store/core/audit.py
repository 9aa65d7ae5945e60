"""The audit: `audit.sql` has one named query for each invariant, and its rows are violations. Reads only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from controller.store.core.database import Reader
from schemas.api.audit import AuditView, AuditViolation

_HEAD: Final = re.compile(r"^-- (?P<name>[a-z_]+): (?P<statement>.+)$", re.MULTILINE)
MAX_ROWS: Final = 100  # of one invariant; the first ones are enough to report a broken ledger


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement that must hold, and the query for the rows that violate it."""

    name: str
    statement: str
    query: str


def _load() -> tuple[Invariant, ...]:
    text = (Path(__file__).parent / "audit.sql").read_text(encoding="utf-8")
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return tuple(
        Invariant(head["name"], head["statement"], text[head.end() : end].strip().rstrip(";"))
        for head, end in zip(heads, ends, strict=True)
    )


INVARIANTS: Final = _load()


async def audit(connection: Reader) -> AuditView:
    """Checks every invariant; the connection must be in one REPEATABLE READ transaction (`Database.snapshot`)."""
    violations: list[AuditViolation] = []
    for invariant in INVARIANTS:
        for row in await connection.fetch(f"{invariant.query} limit {MAX_ROWS}"):
            evidence = _as_json(dict(row))
            shown = ", ".join(f"{key}={value}" for key, value in evidence.items())
            violations.append(
                AuditViolation(
                    invariant=invariant.name, message=f"broken: {invariant.statement}: {shown}", evidence=evidence
                )
            )
    return AuditView(ok=not violations, checked=[i.name for i in INVARIANTS], violations=violations)


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
