"""Samples, minutes and spans of claims, written by hand. Times are seconds after `T0`, a recent full hour."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.store.core.database import Database
from controller.store.telemetry.minutes import PORTION, roll_up
from controller.store.telemetry.partitions import SampleRetention, make_partitions
from support.database.ledger import Host

T0 = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=6)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


async def partitions(db: Database) -> None:
    async with db.transaction() as c:
        await make_partitions(c, SampleRetention(samples_h=25, history_days=14))


async def sample(
    db: Database,
    host: Host,
    device: str,
    values: Iterable[tuple[float, float]],
    *,
    period_s: float = 10.0,
    processes: Sequence[Any] = (),
) -> None:
    """One transaction with a sample for each (seconds, percent)."""
    async with db.transaction() as c:
        await c.executemany(
            """insert into samples (at, device, worker_id, seq, period_s, mean, max, used_mib, processes)
               values ($1, $2, $3, 1, $4, $5, $5, 512, $6)""",
            [(at(s), device, uuid.UUID(host.id), period_s, value, list(processes)) for s, value in values],
        )


async def minutes(db: Database, device: str, values: Iterable[tuple[float, float]], *, instance: str = "") -> None:
    """A fully covered minute for each (seconds of its begin, percent)."""
    async with db.transaction() as c:
        await c.executemany(
            """insert into sample_minutes (minute, device, instance_id, mean, max, samples, covered_s)
               values ($1, $2, $3, $4, $4, 6, 60)""",
            [(at(s), device, instance, value) for s, value in values],
        )


async def span(
    db: Database,
    device: str,
    instance: str,
    uid: str,
    begin: float,
    end: float,
    *,
    share: float | None = None,
    epoch: int = 1,
    name: str = "d",
    ran: bool = True,
) -> None:
    """A claim that has ended: exclusive, or of a share of the memory."""
    async with db.transaction() as c:
        await c.execute(
            """insert into claim_spans (device, worker_id, instance_id, epoch, deployment_uid, deployment, memory_mib,
                                        device_mib, exclusive, running_since, began_at, ended_at)
               select $1, worker_id, $2, $3, $4, $5, ($6::float8 * memory_mib)::bigint, memory_mib, $7, $8, $9, $10
                 from devices where uuid = $1""",
            device,
            instance,
            epoch,
            uuid.UUID(uid),
            name,
            1.0 if share is None else share,
            share is None,
            at(begin) if ran else None,
            at(begin),
            at(end),
        )


async def rolled_up(db: Database, *, portion: int = PORTION) -> int:
    """Rolls up everything; returns the number of portions."""
    taken = 0
    done = False
    while not done:
        async with db.transaction() as c:
            done = await roll_up(c, portion=portion)
        taken += 1
    return taken
