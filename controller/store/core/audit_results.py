"""The result of the last audit, as rows that every controller reads: for readiness and metrics."""

from dataclasses import dataclass
from typing import Any, Final

from controller.store.core.database import Reader
from schemas.api.audit import AuditView

_WRITE: Final = """
    with told as (select * from unnest($1::text[], $2::int[]) as x (invariant, violations)),
         gone as (delete from audit_results where invariant <> all ($1::text[]))
    insert into audit_results (invariant, violations, at)
    select invariant, violations, clock_timestamp() from told
    on conflict (invariant) do update set violations = excluded.violations, at = excluded.at"""
_READ: Final = """
    select invariant, violations, extract(epoch from clock_timestamp() - at)::float8 as age_s
      from audit_results order by invariant"""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Violations by invariant (each counted up to a bound), and the seconds since that audit; None: none was made."""

    violations: dict[str, int]
    age_s: float | None

    @property
    def broken(self) -> dict[str, int]:
        """The invariants that were broken."""
        return {name: count for name, count in self.violations.items() if count}


async def write_audit_result(connection: Any, result: AuditView) -> None:
    """Keeps the result of an audit in place of the one before."""
    counts = dict.fromkeys(result.checked, 0)
    for violation in result.violations:
        counts[violation.invariant] += 1
    await connection.execute(_WRITE, list(counts), list(counts.values()))


async def read_audit_result(connection: Reader) -> AuditResult:
    """The last audit's result."""
    rows = await connection.fetch(_READ)
    return AuditResult(
        {row["invariant"]: row["violations"] for row in rows}, max((row["age_s"] for row in rows), default=None)
    )
