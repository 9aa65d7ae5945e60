"""One order in which every writer of the ledger takes its row locks, so that no two wait for each other in a circle.

deployments, then instances, then workers, then devices; each by its key. NO KEY UPDATE agrees with the foreign keys'
KEY SHARE; workers are only shared, since many may place on one at a time.
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
    """Locks these rows for the rest of the transaction; rows that are gone are passed over."""
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
