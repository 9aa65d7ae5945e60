"""The one order in which every writer of the ledger takes its row locks, so that writers never deadlock.

Deployments, then instances, then policies, then workers, then devices; each by key. What changes policies locks them
itself (`policies/effects.py`, `deployments/apply_all.py`). NO KEY UPDATE is compatible with the foreign keys'
KEY SHARE. Workers are share-locked only, since many transactions may place on one at a time.
"""

from collections.abc import Collection
from typing import Any


async def lock_rows(
    connection: Any,
    *,
    deployments: Collection[str] = (),
    instances: Collection[str] = (),
    workers: Collection[str] = (),
    devices: Collection[str] = (),
) -> None:
    """Locks these rows for the rest of the transaction; missing rows are skipped."""
    if deployments:
        await connection.execute(
            "select 1 from deployments where uid = any($1::uuid[]) order by uid for no key update", list(deployments)
        )
    if instances:
        await connection.execute(
            "select 1 from instances where id = any($1) order by id for no key update", list(instances)
        )
    if workers:
        await connection.execute(
            "select 1 from workers where id = any($1::uuid[]) order by id for share", list(workers)
        )
    if devices:
        await connection.execute(
            "select 1 from devices where uuid = any($1) order by uuid for no key update", list(devices)
        )
