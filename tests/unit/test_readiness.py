"""/readyz needs no key, so however many ask, the database is asked once at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any

from controller.health import Readiness
from controller.store.core.database_space import DatabaseSpace


class Away:
    """A database that does not answer."""

    space = DatabaseSpace()

    async def ping(self) -> None:
        raise OSError("away")

    def connection(self) -> Any:
        raise OSError("away")


async def test_many_askers_cost_one_question() -> None:
    asked = 0

    async def leader() -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return "this one"

    away: Any = Away()
    feed: Any = SimpleNamespace(last_probe_age_s=0.1)
    readiness = Readiness(away, feed, leader, lambda: True)
    answers = await asyncio.gather(*(readiness() for _ in range(200)))
    assert asked == 1
    assert {name: check.ok for name, check in answers[-1].items()} == {
        "database": False, "migrations": False, "ledger": False, "leader": True, "listener": True, "client_env": True,
        "database_space": True,
    }  # fmt: skip
    await asyncio.sleep(0.6)
    await readiness()
    assert asked == 2, "what was said is kept for a moment only"
    impatient = asyncio.create_task(readiness())
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await readiness())["leader"].ok, "an asker that leaves keeps nothing locked"
