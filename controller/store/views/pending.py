"""Pending instances as the API shows them, apart from their places in the queue."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from controller.store.core.database import Reader, row_mapper
from schemas.api.explain import Explain
from schemas.api.view import from_plain

MOST_UNQUEUED: Final = 1_000
_PENDING: Final = """
    select i.id, i.deployment_uid::text as deployment_uid, d.name as deployment, i.phase, i.phase_since as since,
           i.created_at as queued_at, i.not_before, i.reason, i.message, i.explain,
           (d.spec ->> 'priority')::int as priority,
           coalesce((d.spec ->> 'preempt')::boolean, false) as preempt
      from instances i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
     where i.phase in ('pending', 'analyzing') and d.deleted_at is null"""
_THESE: Final = f"{_PENDING} and i.id = any($1)"
# Their analysis is running, they are in backoff, or their revision is outdated and they are about to end.
_OTHERS: Final = f"""{_PENDING} and not exists (select 1 from unnest($1::text[]) queued where queued = i.id)
       and (not $2 or r.need is null or i.not_before > clock_timestamp())
     order by priority desc, i.created_at, i.id
     limit {MOST_UNQUEUED}"""  # noqa: S608 - constants, no input


@dataclass(frozen=True, slots=True)
class StoredPending:
    """A pending instance, as stored by the last placement pass."""

    id: str
    deployment_uid: str
    deployment: str
    phase: str
    since: datetime  # pending
    queued_at: datetime  # start of its age in the queue
    not_before: datetime | None  # earliest placement
    reason: str
    message: str
    explain: Explain | None
    priority: int
    preempt: bool


_stored = row_mapper(StoredPending)


async def read_stored_pending(connection: Reader, instances: Collection[str]) -> dict[str, StoredPending]:
    """Returns rows by instance."""
    return {row["id"]: _stored_of(row) for row in await connection.fetch(_THESE, list(instances))}


async def read_unqueued(connection: Reader, queued: Collection[str], *, more: bool) -> list[StoredPending]:
    """At most `MOST_UNQUEUED` pending instances that are not in the queue. In one REPEATABLE READ transaction.

    `queued`: ids of those in the queue. `more`: the queue has more that were not read.
    """
    return [_stored_of(row) for row in await connection.fetch(_OTHERS, list(queued), more)]


def _stored_of(row: Any) -> StoredPending:
    return _stored(dict(row) | {"explain": from_plain(Explain, row["explain"]) if row["explain"] else None})
