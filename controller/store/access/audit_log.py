"""The audit log: changes and reads of logs, each with its key, address and outcome."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from controller.store.core.database import Reader
from controller.store.views.paging import open_cursor, page_of
from schemas.api.audit import AuditLogEntry
from schemas.api.envelopes import Page

Outcome = Literal["done", "refused", "failed", "cut"]
_PORTION: Final = 5_000
_WRITE: Final = """
    insert into audit_log (actor, action, outcome, object, key_id, address, status, code, request_id, left_out, at)
    select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[],
                         $8::text[], $9::text[], $10::integer[], $11::timestamptz[])"""
# A standby and an account that may only read take no entries, and schemas before 0032 have no table for them.
_TAKES: Final = """
    select coalesce(current_setting('transaction_read_only') = 'off'
                    and has_table_privilege(to_regclass('audit_log')::oid, 'insert'), false)"""
# An object also matches what is below it.
_LIST: Final = """
    select id, at, actor, key_id, address, action, object, outcome, status, code, request_id, left_out
      from audit_log
     where ($1::bigint is null or id < $1)
       and ($2::text is null or actor = any(array[$2, 'key:' || $2, 'agent:' || $2]))
       and ($3::text is null or object = $3 or starts_with(object, $3 || '/'))
       and ($4::timestamptz is null or at > $4) and ($5::timestamptz is null or at < $5)
       and ($6::text is null or outcome = $6)
     order by id desc limit $7"""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry. Its fields are the columns of the table, in the order of the insertion."""

    actor: str
    action: str
    outcome: Outcome
    object: str = ""
    key_id: str = ""
    address: str = ""
    status: int = 0
    code: str = ""
    request_id: str = ""
    left_out: int = 0
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """The wanted entries; None: all."""

    actor: str | None = None
    object: str | None = None
    after: datetime | timedelta | None = None
    before: datetime | timedelta | None = None
    outcome: str | None = None


async def write_entries(connection: Any, entries: Sequence[Entry]) -> None:
    if entries:
        await connection.execute(_WRITE, *(list(column) for column in zip(*map(astuple, entries), strict=True)))


async def write_entry_in_session(session: AsyncSession, entry: Entry) -> None:
    """Appends an entry in the transaction of an ORM session."""
    connection = await (await session.connection()).get_raw_connection()
    await write_entries(connection.driver_connection, [entry])


async def takes_entries(connection: Any) -> bool:
    """Whether this database has the table, and takes entries from this account."""
    return bool(await connection.fetchval(_TAKES))


async def list_entries(
    connection: Reader, *, limit: int, cursor: str | None, wanted: EntryFilter
) -> Page[AuditLogEntry]:
    """A page, newest first.

    Raises:
        BadCursorError: the cursor was not issued for this list.
    """
    (before_id,) = open_cursor(cursor, (int,)) or (None,)
    rows = await connection.fetch(
        _LIST, before_id, wanted.actor, wanted.object, _time(wanted.after), _time(wanted.before), wanted.outcome,
        limit + 1,
    )  # fmt: skip
    return page_of([AuditLogEntry(**dict(row)) for row in rows], limit, lambda entry: (entry.id,))


def _time(when: datetime | timedelta | None) -> datetime | None:
    return datetime.now(UTC) - when if isinstance(when, timedelta) else when


async def prune_entries(connection: Any, *, keep_days: int, up_to: int | None = None) -> None:
    """Deletes a portion of older entries, up to the id `up_to`."""
    await connection.execute(
        """delete from audit_log where id in (
               select id from audit_log
                where at < now() - make_interval(days => $1) and ($3::bigint is null or id <= $3)
                order by at limit $2)""",
        keep_days,
        _PORTION,
        up_to,
    )
