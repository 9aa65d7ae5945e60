"""A plan tells what an apply of the whole file comes to: on random fleets, with what runs there by real applies.

The file is applied document by document through the API, and the reconcilers are stepped on the database until nothing
changes. Each process starts, runs and stops as it is told. Timing is left out: all documents are there before the first
pass, and what has a place comes up.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.store.core.database import Database
from support.api_calls import deployment, plan
from support.database.ledger import add_host, rows
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.leader_term import LeaderTerm
from support.leading.served_api import ServedApi, served
from support.profiles import plan_settings
from support.standins.hosts_by_hand import Hosts, set_heartbeat

_ROUNDS = 60
_EMPTY = """
    delete from claims; delete from commands; delete from processes; delete from instances; delete from revisions;
    delete from intents; delete from deployments; delete from events; delete from worker_liveness;
    delete from devices; delete from workers; delete from policies"""
_INSTANCES = """
    select d.name, i.id, i.phase, i.reason, i.pushed_out_for, i.replaces, i.revision = d.revision as newest
      from instances i join deployments d on d.uid = i.deployment_uid order by d.name, i.created_at, i.id"""
POLICY = {"kind": "UtilizationPolicy", "name": "p", "min_gpu_utilization": 10, "time_window": "30m"}
Document = dict[str, Any]


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
            now = {**now, "env": {"A": "b"}, "replicas": draw(st.integers(0, 3))}
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


class Floor:
    """The API, the reconcilers and the hosts over one database."""

    def __init__(self, api: ServedApi, db: Database, term: LeaderTerm) -> None:
        self.api, self.db, self.term, self.hosts = api, db, term, Hosts(db)

    async def set_up(self, scene: Scene) -> None:
        for number, (gpus, gib) in enumerate(scene.hosts):
            host = await add_host(self.db, f"w{number}", gpus=gpus, gib=gib)
            await set_heartbeat(self.db, host.id)
        await self.apply(POLICY)
        for one in scene.before:
            await self.apply(one)
            await self.rest()
        for name in scene.stopped:
            await self.api.call("POST", f"/api/v1/deployments/{name}/stop")
        for name in scene.deleted:
            await self.api.call("DELETE", f"/api/v1/deployments/{name}")
        await self.rest()

    async def apply(self, document: Document) -> None:
        """As `gpuward apply` does; the deployment takes its step, and the placement pass comes later."""
        kind = {"Deployment": "deployments", "UtilizationPolicy": "policies"}[document["kind"]]
        status, answer = await self.api.call("PUT", f"/api/v1/{kind}/{document['name']}", json=document)
        assert status in (200, 201), answer
        if kind == "deployments":
            self.term.passes.mark_backlog()
            await self.term.instances.step([answer["uid"]])

    async def rest(self) -> None:
        """Steps and carries out commands until nothing changes."""
        before: Any = None
        for _ in range(_ROUNDS):
            await self.term.step()
            moved = await self.hosts.run_commands()
            after = await self.term.picture()
            if after == before and not moved:
                return
            before = after
        raise AssertionError(f"does not come to rest: {before}")

    async def instances(self) -> list[dict[str, Any]]:
        return await rows(self.db, _INSTANCES)


def told(body: dict[str, Any]) -> dict[str, Counter[str]]:
    """By deployment: how many instances are told to fit, and how many to be pending for each reason."""
    found: dict[str, Counter[str]] = {}
    for item in body["items"]:
        state = "fits" if item["fits"] else item["reason"]
        if state is not None:  # None: the rollout does not get there
            found.setdefault(item["deployment"], Counter())[state] += 1
    return found


async def check(floor: Floor, scene: Scene) -> None:
    await floor.set_up(scene)
    earlier = await floor.instances()
    body = await plan(floor.api, *scene.file)
    floor.hosts.at_once = scene.at_once
    (mark,) = [row["last"] for row in await rows(floor.db, "select coalesce(max(id), 0) as last from events")]
    for one in scene.file:
        await floor.apply(one)
    await floor.rest()
    later = await floor.instances()
    known = {one["id"] for one in earlier if one["phase"] == "running"}
    query = "select evidence -> 'leave' as victims from events where reason = 'preempting' and id > $1"
    preempted = {one["instance"] for row in await rows(floor.db, query, mark) for one in row["victims"]}
    victims = {name for item in body["items"] for name in item["preempts"]}
    named = victims & known
    assert named <= preempted, (body, later)
    successors = {one["id"] for one in later if one["replaces"]} - {one["id"] for one in earlier}
    for name, changes in told(body).items():
        now = Counter(
            "fits" if one["phase"] == "running" else one["reason"]
            for one in later
            if one["name"] == name
            and one["newest"]
            and one["id"] not in known
            and (body["changes"][name] == "replace" or one["id"] not in successors)
        )
        assert changes == now, (name, body["changes"], [dict(i) for i in body["items"]], later)


@asynccontextmanager
async def floor_over(postgres: PostgresServer, template: str) -> AsyncIterator[tuple[ServedApi, Database]]:
    async with migrated_database(postgres, template) as db, served(db) as api:
        yield api, db


def test_plan_and_apply_agree(postgres: PostgresServer) -> None:
    template = migrated_template(postgres)
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
        await connection.execute(_EMPTY)
    term = await LeaderTerm.begin(db)
    try:
        await check(Floor(api, db, term), scene)
    finally:
        await term.aclose()
