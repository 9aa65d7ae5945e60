"""What tests of utilization policies share: serving instances, and what policies did to them.

The samples themselves prove that it was neither too early nor too late.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from controller.store.embedded.layout import Layout
from support.processes.cluster import Cluster, Json

SAMPLE_S = 2.0
WINDOW_S = 30
MINIMUM = 50
IDLE_POLICY = {"min_gpu_utilization": MINIMUM, "time_window": WINDOW_S}
SAMPLING = {"GPUWARD_SAMPLE_EVERY_S": str(SAMPLE_S)}
WHOLE = {"gpus": 1}
_LIMIT_S = 30.0
_HIGH = """
    select at, max, $2::text from samples where device = any($1) and max >= $3 and at > $4 and at <= $5"""
_OWN_HIGH = """
    select at, p from samples, jsonb_array_elements(processes) p
     where device = any($1) and p ->> 0 = $2 and (p ->> 4)::float8 >= $3 and at > $4 and at <= $5"""


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@dataclass(frozen=True)
class Serving:
    """A serving instance: since when by the database's clock, and its GPUs. `shared`: others use them too."""

    name: str
    since: datetime
    epoch: int
    gpus: tuple[str, ...]
    shared: bool = False

    def full_at(self, window_s: float = WINDOW_S) -> datetime:
        """When its first window is full."""
        return self.since + seconds(window_s)


class PolicyWatch:
    """A cluster's policies from outside: by the API, and by its database."""

    def __init__(self, cluster: Cluster, dsn: str | None = None) -> None:
        self.cluster = cluster
        self._dsn = dsn

    async def rows(self, query: str, *args: Any) -> list[Any]:
        """Runs a query on a connection of the test's own."""
        dsn = self._dsn or Layout(self.cluster.data_dir).url("postgresql")
        connection = await asyncpg.connect(dsn, timeout=_LIMIT_S, command_timeout=_LIMIT_S)
        try:
            return list(await connection.fetch(query, *args))
        finally:
            await connection.close(timeout=_LIMIT_S)

    async def now(self) -> datetime:
        """The database's time, which counts here."""
        (row,) = await self.rows("select clock_timestamp() as now")
        return row["now"]  # type: ignore[no-any-return]

    async def pass_until(self, moment: datetime) -> None:
        """Waits until then."""
        await asyncio.sleep(max(0.0, (moment - await self.now()).total_seconds()))

    # Actions of users

    async def put(self, name: str, **spec: Any) -> Json:
        status, answer = await self.cluster.call("PUT", f"/policies/{name}", spec)
        assert status in (200, 201), answer
        return dict(answer)

    async def delete(self, name: str) -> None:
        status, answer = await self.cluster.call("DELETE", f"/policies/{name}")
        assert status in (200, 202, 204), answer

    async def idle(self, name: str, percent: Any = 0, **spec: Any) -> None:
        """Applies a deployment that claims a whole GPU at this utilization."""
        args = {"utilization": percent, **spec.pop("args", {})}
        await self.cluster.apply(name, **{"resources": WHOLE, "args": args, **spec})

    # Observations

    async def placed(self, name: str) -> bool:
        """Whether all of its instances hold claims."""
        found = await self.cluster.instances(name)
        return bool(found) and all(i["status"]["claims"] for i in found)

    async def deployment(self, name: str) -> Json:
        return dict(await self.cluster.get(f"/deployments/{name}"))

    async def condition(self, name: str) -> Json:
        """Its condition `Idle`; empty without one."""
        conditions = (await self.deployment(name))["status"]["conditions"]
        return next((dict(c) for c in conditions if c["type"] == "Idle"), {})

    async def verdicts(self, name: str) -> dict[str, Json]:
        """The verdicts on its instances."""
        found = await self.cluster.instances(name)
        return {i["name"]: i["status"]["utilization"] for i in found if i["status"]["utilization"]}

    async def serving(self, name: str, count: int = 1, limit_s: float = 40.0) -> list[Serving]:
        """Waits until so many instances run, the oldest first."""
        found: list[Serving] = []

        async def there() -> bool:
            found[:] = await self._served(name)
            return len(found) == count

        await self.cluster.until(there, f"{count} of {name} serve", limit_s)
        return found

    async def _served(self, name: str) -> list[Serving]:
        rows = await self.rows(
            """select i.id, i.running_since, i.epoch, array_agg(c.device order by c.device) as gpus,
                      not bool_and(c.exclusive) as shared
                 from instances i join deployments p on p.uid = i.deployment_uid
                 join claims c on c.instance_id = i.id join devices d on d.uuid = c.device and d.kind = 'gpu'
                where p.name = $1 and i.phase = 'running' and i.running_since is not null
                group by i.id order by i.running_since""",
            name,
        )
        return [
            Serving(row["id"], row["running_since"], row["epoch"], tuple(row["gpus"]), row["shared"]) for row in rows
        ]

    async def events(self, reason: str, name: str) -> list[Json]:
        """Events of a deployment, oldest first; `at` is a datetime."""
        found = (await self.cluster.get(f"/events?object=deployment/{name}&reason={reason}&limit=100"))["items"]
        return [{**event, "at": datetime.fromisoformat(event["at"])} for event in reversed(found)]

    async def only_event(self, reason: str, name: str, limit_s: float = 40.0) -> Json:
        """Waits for the only event of this reason."""
        found: list[Json] = []

        async def there() -> bool:
            found[:] = await self.events(reason, name)
            return bool(found)

        await self.cluster.until(there, f"{reason} of {name}", limit_s)
        (only,) = found
        return only

    async def untouched(self, names: Iterable[str]) -> None:
        """Checks that no policy ever acted on these, nor would have in a dry run."""
        for name in names:
            (row,) = await self.rows("select count(*) from policy_actions where deployment = $1", name)
            assert row["count"] == 0, name
            assert (await self.deployment(name))["status"]["intents"] == [], name

    # Neither too early nor too late

    async def check_not_early(self, event: Json, served: Iterable[Serving], window_s: float = WINDOW_S) -> None:
        """Each instance had lived through a whole window, in which no sample of its GPUs was at the minimum."""
        for one in served:
            assert event["at"] >= one.full_at(window_s), (event, one)
            high = await self.rows(
                _OWN_HIGH if one.shared else _HIGH,
                one.gpus,
                one.name,
                event["evidence"]["min_gpu_utilization"],
                event["at"] - seconds(window_s),
                event["at"],
            )
            assert not high, (event, high)

    async def last_high(self, served: Serving, minimum: float = MINIMUM) -> datetime:
        """When one of its GPUs was last at the minimum."""
        (row,) = await self.rows(
            "select max(at) as at from samples where device = any($1) and max >= $2", served.gpus, minimum
        )
        return row["at"]  # type: ignore[no-any-return]

    def check_evidence(self, event: Json, served: Iterable[Serving], worker: str = "") -> None:
        """Checks that the event's evidence suffices to verify it."""
        served = list(served)
        evidence = event["evidence"]
        assert {gpu["uuid"] for gpu in evidence["gpus"]} == {uuid for one in served for uuid in one.gpus}
        assert evidence["policy_generation"] >= 1
        for gpu in evidence["gpus"]:
            assert gpu["highest"] < evidence["min_gpu_utilization"], event
            assert gpu["coverage"] >= evidence["min_coverage"], event
            assert gpu["samples"] >= evidence["window_s"] / SAMPLE_S * evidence["min_coverage"] - 1, event
            assert f"gpu:{gpu['uuid']}" in event["objects"]
            assert worker in ("", gpu["worker"]), event
            known = [value for value in gpu["series"] if value is not None]
            assert known, event
            assert len(gpu["series"]) <= 60
            assert max(known) == gpu["highest"]
        assert evidence["requests_seen"] == 0, event
        assert {f"instance:{one.name}" for one in served} <= set(event["objects"])
