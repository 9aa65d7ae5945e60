"""A plan tells what an apply of the whole file comes to: on random fleets, with what runs there by real applies.

The file is applied document by document through the API, and the reconcilers are stepped on the database until nothing
changes. Each process starts, runs and stops as it is told. Timing is left out: all documents are there before the first
pass, and what has a place comes up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.api.dry_run.kept_inventory import KEPT_INVENTORY
from controller.store.core.database import Database
from support.api_calls import deployment, plan
from support.database.ledger import add_host
from support.database.migrated import migrated_database
from support.database.postgres import PostgresServer
from support.database.truncated import EMPTY
from support.leading.leader_term import LeaderTerm
from support.leading.plan_floor import Document, Floor, check_foretold
from support.leading.served_api import ServedApi, served
from support.profiles import plan_settings
from support.standins.hosts_by_hand import set_heartbeat

POLICY = {"kind": "UtilizationPolicy", "name": "p", "min_gpu_utilization": 10, "time_window": "30m"}


@dataclass(frozen=True)
class Scene:
    """Hosts with GPUs and memory of each in GiB, the files that were applied before, and the file."""

    hosts: tuple[tuple[int, int], ...]
    before: tuple[Document, ...]
    stopped: tuple[str, ...]
    deleted: tuple[str, ...]
    file: tuple[Document, ...]
    at_once: int  # commands that each host carries out while the reconcilers take a step


@st.composite
def documents(draw: st.DrawFn, name: str, priority: int, hosts: int) -> Document:
    resources: dict[str, Any] = {"gpus": draw(st.sampled_from([1, 1, 1, 2]))}
    if draw(st.booleans()):
        resources["gpu_memory"] = draw(st.sampled_from(["8GiB", "12GiB", "24GiB"]))
    fields: dict[str, Any] = {"resources": resources, "replicas": draw(st.integers(0, 3)), "priority": priority}
    fields["preempt"] = draw(st.sampled_from([False, False, True]))
    if draw(st.integers(0, 3)) == 0:
        pool = draw(st.sets(st.integers(0, hosts - 1), min_size=1, max_size=2))
        fields["placement"] = {"workers": [f"w{n}" for n in sorted(pool)]}
    if draw(st.integers(0, 3)) == 0:
        fields["utilization_policy"] = "p"
    if draw(st.integers(0, 4)) == 0:
        fields["movable"] = False
    if draw(st.integers(0, 2)) == 0:
        surge, unavailable = draw(st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 0)]))
        fields["update"] = "rolling"
        fields["rollout"] = {"ready_for": 0, "surge": surge, "unavailable": unavailable}
    return deployment(name, **fields)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    hosts = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([16, 24])), min_size=2, max_size=5))
    names = [f"d{n}" for n in range(draw(st.integers(2, 5)))]
    priorities = draw(st.permutations([10 * n for n in range(1, len(names) + 1)]))
    docs = {n: draw(documents(n, p, len(hosts))) for n, p in zip(names, priorities, strict=True)}
    before = [docs[name] for name in draw(st.permutations(names)) if draw(st.integers(0, 3))]
    running = [one["name"] for one in before]
    stopped = tuple(name for name in running if draw(st.integers(0, 5)) == 0)
    deleted = tuple(name for name in running if draw(st.integers(0, 5)) == 0)
    file = []
    for name in draw(st.permutations(names)):
        now, kind = docs[name], draw(st.sampled_from(["same", "out", "scale", "env", "anew", "preempt"]))
        if kind == "scale":
            now = {**now, "replicas": draw(st.integers(0, 4))}
        elif kind == "env":
            now = {**now, "env": {"LANG": "b"}, "replicas": draw(st.integers(0, 3))}
        elif kind == "anew":
            now = draw(documents(name, now["priority"], len(hosts)))
        elif kind == "preempt":
            now = {**now, "preempt": not now["preempt"]}
        if kind != "out" or name not in running:
            file.append(now)
    if not file:
        file = [docs[names[0]]]
    if draw(st.booleans()):
        file.insert(0, {**POLICY, "time_window": "1h"})
    return Scene(tuple(hosts), tuple(before), stopped, deleted, tuple(file), draw(st.sampled_from([1, 100])))


async def set_up(floor: Floor, scene: Scene) -> None:
    for number, (gpus, gib) in enumerate(scene.hosts):
        host = await add_host(floor.db, f"w{number}", gpus=gpus, gib=gib)
        await set_heartbeat(floor.db, host.id)
    await floor.apply(POLICY)
    for one in scene.before:
        await floor.apply(one)
        await floor.rest()
    for name in scene.stopped:
        await floor.api.call("POST", f"/api/v1/deployments/{name}/stop")
    for name in scene.deleted:
        await floor.api.call("DELETE", f"/api/v1/deployments/{name}")
    await floor.rest()


async def check(floor: Floor, scene: Scene) -> None:
    await set_up(floor, scene)
    earlier = await floor.instances()
    body = await plan(floor.api, *scene.file)
    floor.hosts.at_once = scene.at_once
    await check_foretold(floor, body, scene.file, earlier)


@asynccontextmanager
async def floor_over(postgres: PostgresServer, template: str) -> AsyncIterator[tuple[ServedApi, Database]]:
    async with migrated_database(postgres, template) as db, served(db) as api:
        yield api, db


def test_plan_and_apply_agree(postgres: PostgresServer, template: str) -> None:
    with asyncio.Runner() as runner:
        place = floor_over(postgres, template)
        api, db = runner.run(place.__aenter__())
        try:

            @plan_settings()
            @given(scenes())
            def agree(scene: Scene) -> None:
                runner.run(one_example(api, db, scene))

            agree()
        finally:
            runner.run(place.__aexit__(None, None, None))


async def one_example(api: ServedApi, db: Database, scene: Scene) -> None:
    async with db.connection() as connection:
        await connection.execute(EMPTY)
    api.app[KEPT_INVENTORY].clear()
    term = await LeaderTerm.begin(db)
    try:
        await check(Floor(api, db, term), scene)
    finally:
        await term.aclose()
