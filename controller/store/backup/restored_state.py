"""What a restored state means: whatever happened since the backup is unknown to it."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

# Nothing leads; agents tell first what runs. Transaction ids are of this server alone.
_LEASE: Final = """
    update lease set holder = '', renewed_at = '-infinity', cut_at = clock_timestamp(), settled_at = null,
           timeline = null
     where id = 1"""
_ROLLUPS: Final = """
    insert into rollup_progress (horizon, at) values (pg_current_xact_id(), now())
        on conflict (id) do update set horizon = excluded.horizon, at = excluded.at"""
_DISCONNECTED: Final = "update worker_liveness set connected = false"
# An agent may name what it has seen, however often backups are restored.
_WORKERS: Final = "update workers set above_at = null"
# One that was used since then would be valid once more.
_TOKENS: Final = """
    update join_tokens set revoked_at = clock_timestamp()
     where used_at is null and revoked_at is null and expires_at > clock_timestamp() returning 1"""
# They may have been delivered since then.
_WEBHOOKS: Final = """
    update webhook_deliveries set finished_at = clock_timestamp(), error = 'not sent: a backup was restored'
     where finished_at is null returning 1"""
_REVOKE_KEYS: Final = "update api_keys set revoked_at = clock_timestamp() where revoked_at is null returning 1"
_KEYS: Final = "select count(*)::int from api_keys where revoked_at is null"
_COUNTS: Final = """
    select (select count(*) from deployments where deleted_at is null)::int as deployments,
           (select count(*) from instances)::int as instances,
           (select count(*) from workers where deleted_at is null)::int as workers"""

_EVENT: Final = """
    insert into events (reason, message, evidence, objects, actor, request_id, subjects)
    values ('restored', 'a backup was restored: what changed since it was taken is lost', $1::text::jsonb,
            '{controller:restore}', 'host', '', event_subjects('{controller:restore}', $1::text::jsonb))"""


@dataclass(frozen=True, slots=True)
class Restored:
    """What is there now, and what was ended because it may be outdated.

    `violations`: of the ledger's invariants, as they were in the backup. `unreadable_secrets`: no key here opens them.
    `receipts_unreadable`: nor that of receipts, by which engines are taken back that the backup does not know.
    """

    deployments: int
    instances: int
    workers: int
    valid_keys: int
    revoked_keys: int
    revoked_tokens: int
    dropped_webhooks: int
    violations: tuple[str, ...] = ()
    unreadable_secrets: tuple[str, ...] = ()
    receipts_unreadable: bool = False


async def make_current(connection: Any, *, revoke_keys: bool) -> Restored:
    """Ends what must not come back with an old state. In the transaction of the restore."""
    for statement in (_LEASE, _ROLLUPS, _DISCONNECTED, _WORKERS):
        await connection.execute(statement)
    tokens = len(await connection.fetch(_TOKENS))
    webhooks = len(await connection.fetch(_WEBHOOKS))
    revoked = len(await connection.fetch(_REVOKE_KEYS)) if revoke_keys else 0
    counts = dict(await connection.fetchrow(_COUNTS))
    restored = Restored(
        **counts,
        valid_keys=await connection.fetchval(_KEYS),
        revoked_keys=revoked,
        revoked_tokens=tokens,
        dropped_webhooks=webhooks,
    )
    await connection.execute(_EVENT, orjson.dumps(counts).decode())
    return restored
