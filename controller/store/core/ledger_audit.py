"""The audit: `ledger_audit.sql` has one named query for each invariant, and its rows are violations. Reads only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from controller.store.core.database import Reader
from schemas.api.audit import AuditView, AuditViolation

MAX_ROWS: Final = 100  # of each invariant: enough to report a broken ledger
_WRITE_RESULT: Final = """
    with result as (select * from unnest($1::text[], $2::int[]) as x (invariant, violations)),
         gone as (delete from audit_results where invariant <> all ($1::text[]))
    insert into audit_results (invariant, violations, at)
    select invariant, violations, clock_timestamp() from result
    on conflict (invariant) do update set violations = excluded.violations, at = excluded.at"""
_READ_RESULT: Final = """
    select invariant, violations, extract(epoch from clock_timestamp() - at)::float8 as age_s
      from audit_results order by invariant"""
_BLOCK_HEAD: Final = re.compile(r"^-- (?P<name>[a-z_]+): (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SqlBlock:
    """A statement with its name and its text, from the line `-- name: text` above it."""

    name: str
    text: str
    query: str


def read_blocks(file: Path) -> tuple[SqlBlock, ...]:
    content = file.read_text(encoding="utf-8")
    heads = list(_BLOCK_HEAD.finditer(content))
    ends = [head.start() for head in heads[1:]] + [len(content)]
    return tuple(
        SqlBlock(head["name"], head["text"], content[head.end() : end].strip().rstrip(";"))
        for head, end in zip(heads, ends, strict=True)
    )


INVARIANTS: Final = read_blocks(Path(__file__).parent / "ledger_audit.sql")


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


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Violations by invariant, each counted up to `MAX_ROWS`, and the age of that audit; None without an audit."""

    violations: dict[str, int]
    age_s: float | None

    @property
    def broken(self) -> dict[str, int]:
        return {name: count for name, count in self.violations.items() if count}


async def write_audit_result(connection: Any, result: AuditView) -> None:
    """Replaces the stored result."""
    counts = dict.fromkeys(result.checked, 0)
    for violation in result.violations:
        counts[violation.invariant] += 1
    await connection.execute(_WRITE_RESULT, list(counts), list(counts.values()))


async def read_audit_result(connection: Reader) -> AuditResult:
    rows = await connection.fetch(_READ_RESULT)
    return AuditResult(
        {row["invariant"]: row["violations"] for row in rows}, max((row["age_s"] for row in rows), default=None)
    )
