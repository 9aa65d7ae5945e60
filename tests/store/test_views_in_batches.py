"""All objects at once: other work runs between two batches of them."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from controller.store.core.database import Database
from controller.store.views import deployments, instances, workers
from controller.store.views.paging import BATCH
from support.database.many_models import add_models


async def test_all_views_are_made_in_batches_and_in_order(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_models(migrated, 0, 3 * BATCH)
    async with migrated.transaction() as c:
        await c.execute(
            """insert into workers (id, name, credential_hash, proxy_secret, phase, os, arch, driver, simulated,
                                    gpus_known, session, reported_at)
               select gen_random_uuid(), 'many-' || n, ('many-' || n)::bytea, 's', 'ready', 'linux', 'x86_64', '580.95',
                      true, true, 1, now() from generate_series(1, $1::int) n""",
            3 * BATCH,
        )
    made, seen = [0], [0]

    async def tick() -> None:
        while True:
            seen.append(made[0])
            await asyncio.sleep(0)

    for module in (deployments, instances, workers):
        make = module._view

        def counted(*args: Any, make: Any = make) -> Any:
            made[0] += 1
            return make(*args)

        monkeypatch.setattr(module, "_view", counted)
    ticking = asyncio.create_task(tick())
    async with migrated.snapshot() as c:
        everything = [
            await deployments.deployments_by_uid(c), await instances.instances_of(c), await workers.workers_by_id(c),
        ]  # fmt: skip
    ticking.cancel()
    seen.append(made[0])
    assert seen[-1] == sum(map(len, everything)) >= 9 * BATCH
    assert max(after - before for before, after in pairwise(seen)) <= BATCH
    for views in everything:
        names = [view.name for view in views]
        assert names == sorted(names)
