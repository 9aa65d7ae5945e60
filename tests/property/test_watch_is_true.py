"""After any history of writes, what a watch has told comes to the same as the lists of the API.

Notifications alone must do it: the sweep, which would hide a write that is not notified, reads only what the clock
changes, and the policies, whose figures follow those of instances.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.live import object_feed, objects
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.store.core.database import Database
from controller.store.telemetry.samples import record_dropped
from support.api_calls import deployment
from support.database.ledger import add_host, rows
from support.database.migrated import migrated_database
from support.database.postgres import PostgresServer
from support.database.truncated import EMPTY
from support.leading.leader_term import LeaderTerm
from support.leading.plan_floor import Floor
from support.leading.served_api import ServedApi, served
from support.profiles import plan_settings
from support.standins.hosts_by_hand import set_heartbeat

LIMIT_S = 10.0
KINDS = ("deployments", "instances", "workers", "policies")
State = dict[tuple[str, str], dict[str, Any]]
Step = tuple[Any, ...]

names = st.sampled_from(["d0", "d1", "d2"])
hosts = st.sampled_from(["w0", "w1"])
steps = st.one_of(
    st.tuples(st.just("apply"), names, st.integers(0, 3), st.sampled_from([None, "4GiB"]), st.booleans()),
    st.tuples(st.sampled_from(["stop", "start", "delete"]), names),
    st.tuples(st.just("scale"), names, st.integers(0, 4)),
    st.tuples(st.sampled_from(["cordon", "drain", "uncordon", "remove", "silent", "back", "drop"]), hosts),
    st.tuples(st.just("policy"), st.integers(1, 90)),
    st.tuples(st.sampled_from(["unpolicy", "exit", "rest", "look"])),
)


class Watcher:
    """A client of `GET /watch` that keeps what it was told."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self.state: State = {}
        self._stream = stream

    async def follow(self) -> None:
        async for line in self._stream:
            if line.startswith(b"data: "):
                self._take(orjson.loads(line.removeprefix(b"data: ")))

    def _take(self, told: dict[str, Any]) -> None:
        match told["type"], told["object"]:
            case "snapshot", lists:
                self.state = {(one["kind"], one["uid"]): one for kind in KINDS for one in lists[kind]}
            case "changed", one:
                self.state[one["kind"], one["uid"]] = one
            case "gone", one:
                del self.state[one["kind"], one["uid"]]


async def lists(api: ServedApi) -> State:
    found: State = {}
    for kind in KINDS:
        page = await api.get(f"/api/v1/{kind}?limit=1000")
        assert page["next"] is None
        found |= {(one["kind"], one["uid"]): one for one in page["items"]}
    return found


def at_rest(state: State) -> State:
    """Without what moves on by itself."""
    return {
        key: one | {"status": {k: v for k, v in one["status"].items() if k not in ("last_seen", "gpu_seconds_freed")}}
        for key, one in state.items()
    }


async def change_deployment(api: ServedApi, verb: str, name: str, *given: Any) -> None:
    path = f"/api/v1/deployments/{name}"
    match verb, given:
        case "apply", (replicas, memory, policed):
            resources = {"gpus": 1} | ({"gpu_memory": memory} if memory else {})
            more = {"utilization_policy": {"min_gpu_utilization": 10, "time_window": "5m"}} if policed else {}
            fields = {"replicas": replicas, "resources": resources, "env": {"A": str(replicas)}, **more}
            await api.call("PUT", path, json=deployment(name, **fields))
        case "scale", (replicas,):
            await api.call("POST", f"{path}/scale", json={"replicas": replicas})
        case "delete", ():
            await api.call("DELETE", path)
        case _:
            await api.call("POST", f"{path}/{verb}")


async def change_worker(floor: Floor, verb: str, name: str) -> None:
    found = await rows(floor.db, "select id from workers where name = $1 and deleted_at is null", name)
    match verb:
        case "remove":
            await floor.api.call("DELETE", f"/api/v1/workers/{name}?confirm_dead=true")
        case "silent" | "back":
            for row in found:
                await set_heartbeat(floor.db, str(row["id"]), silent=verb == "silent")
        case "drop":
            for row in found:
                async with floor.db.transaction() as connection:
                    await record_dropped(connection, str(row["id"]), 1, "period 1: too old")
        case _:
            await floor.api.call("POST", f"/api/v1/workers/{name}/{verb}")


async def take_step(floor: Floor, step: Step) -> None:
    match step:
        case "policy", percent:
            policy = {"kind": "UtilizationPolicy", "name": "p", "default": True, "min_gpu_utilization": percent}
            await floor.api.call("PUT", "/api/v1/policies/p", json={**policy, "time_window": "30m"})
        case ("unpolicy",):
            await floor.api.call("DELETE", "/api/v1/policies/p")
        case ("exit",) if floor.hosts.running:
            await floor.hosts.end(min(floor.hosts.running)[0], 1)
        case verb, name, *given if str(name).startswith("d"):
            await change_deployment(floor.api, verb, name, *given)
        case verb, name:
            await change_worker(floor, verb, name)
        case _:
            await floor.rest()


async def agree(floor: Floor, watcher: Watcher) -> None:
    """Waits for the watch to tell what the lists tell."""
    wanted = at_rest(await lists(floor.api))
    try:
        async with asyncio.timeout(LIMIT_S):
            while at_rest(watcher.state) != wanted:  # noqa: ASYNC110 - nothing is awaited here
                await asyncio.sleep(0.02)
    except TimeoutError:
        told = at_rest(watcher.state)
        differ = {key: (told.get(key), wanted.get(key)) for key in told.keys() | wanted.keys()}
        raise AssertionError({key: pair for key, pair in differ.items() if pair[0] != pair[1]}) from None


async def one_example(api: ServedApi, db: Database, history: list[Step]) -> None:
    async with db.connection() as connection:
        await connection.execute(EMPTY)
    api.changes.publish("*", None)  # a truncation is not notified, and the reader outlasts its watchers
    term = await LeaderTerm.begin(db)
    floor = Floor(api, db, term)
    for name in ("w0", "w1"):
        await set_heartbeat(db, (await add_host(db, name, gpus=2, gib=16)).id)
    watch = f"{api.url}/api/v1/watch?kinds={','.join(KINDS)}"
    async with api.session.get(watch, headers=api.header("viewer")) as answer:
        watcher = Watcher(answer.content)
        following = asyncio.create_task(watcher.follow())
        try:
            for step in history:
                await take_step(floor, step)
                if step == ("look",):
                    await agree(floor, watcher)
            await floor.rest()
            await agree(floor, watcher)
        finally:
            following.cancel()
            await asyncio.wait([following])
            await term.aclose()


@asynccontextmanager
async def place(postgres: PostgresServer, template: str) -> AsyncIterator[tuple[ServedApi, Database]]:
    async with migrated_database(postgres, template) as db, served(db) as api:
        feed = asyncio.create_task(ChangeFeed(db.listen_connection, api.changes.publish, SystemClock()).run())
        try:
            yield api, db
        finally:
            feed.cancel()
            await asyncio.wait([feed])


def test_a_watch_comes_to_what_the_lists_tell(
    postgres: PostgresServer, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_feed, "COALESCE_S", 0.01)
    monkeypatch.setattr(object_feed, "SWEEP_S", 0.2)
    monkeypatch.setattr(objects, "SWEPT", 0)
    with asyncio.Runner() as runner:
        here = place(postgres, template)
        api, db = runner.run(here.__aenter__())
        try:

            @plan_settings()
            @given(st.lists(steps, min_size=3, max_size=12))
            def true(history: list[Step]) -> None:
                runner.run(one_example(api, db, history))

            true()
        finally:
            runner.run(here.__aexit__(None, None, None))
