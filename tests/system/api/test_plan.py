"""Plans: the checks and the placement of an apply, without writing a row."""

import time
from typing import Any

import pytest

from controller.api.dry_run import manifests as manifests_module
from controller.api.dry_run.effects import ManifestEffect, plan_items
from controller.domain.holdings import Holder, Holders
from controller.domain.placement import Need, PlannedClaim
from controller.store.core.database import Database
from schemas.manifest.deployment import DeploymentSpec
from support.fleet import Fleet
from support.ledger import GIB, add_deployment, add_host, add_instance, claim, rows
from support.served import ServedApi

PLAN = "/api/v1/plan"
_TABLES = ("deployments", "revisions", "instances", "claims", "events", "commands", "devices", "workers")


def manifest(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "Deployment", "name": name, "engine": "simulated", **fields}


async def everything(db: Database) -> list[list[dict[str, Any]]]:
    return [await rows(db, f"select t::text as row from {table} t order by 1") for table in _TABLES]  # noqa: S608 - constants


async def plan(api: ServedApi, *manifests: dict[str, Any]) -> dict[str, Any]:
    status, body = await api.call("POST", PLAN, role="operator", json={"manifests": list(manifests)})
    assert status == 200, body
    return body


async def test_several_are_planned_together_by_priority(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=40)
    before = await everything(db)
    body = await plan(
        api,
        manifest("low", replicas=2, resources={"gpus": 1, "exclusive": True}),
        manifest("high", priority=500, resources={"gpus": 1, "exclusive": True}),
    )
    assert body["changes"] == {"low": "create", "high": "create"}
    assert [(one["deployment"], one["instance"], one["fits"]) for one in body["items"]] == [
        ("low", 0, True), ("low", 1, False), ("high", 0, True),
    ]  # fmt: skip
    placed, waiting, first = body["items"]
    assert (placed["worker"], len(placed["gpus"]), placed["memory_mib_per_gpu"]) == ("w", 1, 40 * GIB)
    assert placed["gpus"] != first["gpus"]
    assert sum(waiting["explain"]["rejected"].values()) == waiting["explain"]["workers"] == 1
    assert await everything(db) == before


async def test_pending_instances_come_first_and_their_capacity_is_reserved(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=3, gib=40)
    uids = [await add_deployment(db, name, resources={"gpus": n}) for name, n in (("one", 1), ("big", 3), ("next", 1))]
    await add_instance(db, uids[0], "one-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "one-1", 40 * GIB)
    await add_instance(db, uids[2], "next-1")
    async with db.connection() as connection:
        need = {"memory_mib": None, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
        await connection.execute("update revisions set need = $1", need)
    first = manifest("small", resources={"gpus": 1})
    both = await plan(api, {**first, "replicas": 2}), await plan(api, {**first, "replicas": 2, "priority": 900})
    assert [[item["fits"] for item in body["items"]] for body in both] == [[True, False], [True, True]]
    await add_instance(db, uids[1], "big-1")
    async with db.connection() as connection:
        await connection.execute("update instances set phase = 'failed' where id = 'next-1'")
        await connection.execute("update instances set phase_since = now() - interval '2 min' where id = 'big-1'")
    (item,) = (await plan(api, first))["items"]
    assert not item["fits"]
    assert "capacity is reserved for big-1 on w" in item["explain"]["message"]


async def test_each_kind_of_change_is_distinguished(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    spec = {"resources": {"gpus": 1, "gpu_memory": "30GiB"}}
    uid = await add_deployment(db, "a", **spec)
    await add_instance(db, uid, "a-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "a-1", 30 * GIB)

    unchanged = await plan(api, manifest("a", **spec))
    assert (unchanged["changes"], unchanged["items"]) == ({"a": "unchanged"}, []), "it runs already"
    update = await plan(api, manifest("a", replicas=2, **spec))
    assert update["changes"] == {"a": "update"}
    assert [one["fits"] for one in update["items"]] == [False], "one more does not fit beside it"
    replace = await plan(api, manifest("a", env={"A": "b"}, **spec))
    assert replace["changes"] == {"a": "replace"}
    assert [one["gpus"] for one in replace["items"]] == [["GPU-w-0"]], "the old one frees its GPU"
    stranger = await plan(api, manifest("b", **spec))
    assert [one["fits"] for one in stranger["items"]] == [False]


async def test_a_need_is_analysed_only_where_it_is_not_known(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    model = {"engine": "transformers", "model": "path:/models/tiny"}
    unknown = await plan(api, manifest("a", **model))
    (item,) = unknown["items"]
    assert not item["fits"]
    assert "metadata_unknown: the folder cannot be read here" in item["explain"]["message"]
    api.surroundings.need = Need(memory_mib=10 * GIB)
    (item,) = (await plan(api, manifest("a", **model)))["items"]
    assert (item["fits"], item["memory_mib_per_gpu"]) == (True, 10 * GIB)
    assert len(api.surroundings.analysed) == 2
    await add_deployment(db, "other", **model)
    async with db.transaction() as connection:
        need = {"memory_mib": 20 * GIB, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
        await connection.execute("update revisions set need = $1", need)
    (item,) = (await plan(api, manifest("a", **model)))["items"]
    assert item["memory_mib_per_gpu"] == 20 * GIB
    assert len(api.surroundings.analysed) == 2, "what was found out once is not found out again"


async def test_manual_choice_is_as_strict_as_automatic(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    await add_host(db, "silent", gpus=1, phase="unreachable")
    (item,) = (await plan(api, manifest("a", resources={"gpus": 1}, placement={"workers": ["silent"]})))["items"]
    assert not item["fits"]
    assert "not_ready" in item["explain"]["rejected"]


async def test_bad_manifests_are_refused_as_an_apply_refuses_them(api: ServedApi) -> None:
    async def problems(*manifests: Any) -> dict[str, str]:
        status, body = await api.call("POST", PLAN, json={"manifests": list(manifests)})
        assert status == 400, body
        return {one["path"]: one["message"] for one in body["error"]["details"]["problems"]}

    assert "did you mean 'replicas'" in (await problems(manifest("a", replcas=1)))["replcas"]
    found = await problems(manifest("a", runtime="docker"), manifest("b", update="rolling"))
    assert found.keys() == {"[0].runtime", "[1].update"}
    assert "manifests" in await problems()
    assert "at most 10000" in (await problems(manifest("a", replicas=20_000)))["replicas"]


async def test_a_plan_shows_engine_layout_and_parts(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=4, gib=40)
    (item,) = (await plan(api, manifest("a", args={"memory": "60GiB", "heads": 32})))["items"]
    assert item["engine"] == "simulated"
    assert item["layout"] == {"gpus": 2, "workers": 1, "tp": 2, "pp": 1, "dp": 1}
    assert (item["need"]["parts"], item["need"]["memory_mib"]) == ({"simulated": 60 * GIB}, 60 * GIB)


async def test_what_would_make_it_fit(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    (item,) = (await plan(api, manifest("a", args={"memory": "60GiB"})))["items"]
    assert item["explain"]["advice"] == ["fits with gpu_memory <= 40GiB on 1 GPU"]
    uid = await add_deployment(db, "b", args={"memory": "60GiB"})
    await add_instance(db, uid, "b-1")
    status, answer = await api.call("GET", "/api/v1/instances/b-1/explain")
    assert (status, answer["message"]) == (200, "metadata_unknown: the analysis of its need is running")
    async with db.transaction() as connection:
        need = {"memory_mib": 60 * GIB, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
        await connection.execute("update revisions set need = $1", need)
    found = await api.get("/api/v1/instances/b-1/explain", role="viewer")
    assert (found["rejected"], found["advice"]) == ({"need_gt_capacity": 1}, ["fits with gpu_memory <= 40GiB on 1 GPU"])
    async with db.transaction() as connection:
        await connection.execute("update instances set phase = 'failed'")
    status, answer = await api.call("GET", "/api/v1/instances/b-1/explain")
    assert (status, answer["error"]["code"]) == (409, "not_waiting")


async def test_a_plan_names_the_victims(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    uid = await add_deployment(db, "low", resources={"gpus": 1, "exclusive": True})
    await add_instance(db, uid, "low-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "low-1", 40 * GIB, exclusive=True)
    whole = {"gpus": 1, "exclusive": True}
    (item,) = (await plan(api, manifest("high", priority=500, preempt=True, resources=whole)))["items"]
    assert (item["fits"], item["preempts"]) == (False, ["low-1"])
    assert "preempts low-1" in item["explain"]["note"]
    (item,) = (await plan(api, manifest("high", priority=500, resources=whole)))["items"]
    assert (item["preempts"], item["explain"]["advice"]) == ([], ["fits once low-1 has ended on w"])


async def test_a_model_that_is_not_read_in_time_leaves_the_others_planned(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_host(db, "w", gpus=8, gib=80)
    monkeypatch.setattr(manifests_module, "_ANALYSIS_LIMIT_S", 0.05)
    api.surroundings.delay_s = 60.0
    hangs = manifest("hangs", engine="vllm", model="hf:org/slow")
    fits = manifest("fits", engine="vllm", model="hf:org/known", resources={"gpu_memory": "20GiB"})
    items = {item["deployment"]: item for item in (await plan(api, hangs, fits))["items"]}
    assert items["fits"]["fits"]
    assert items["hangs"]["explain"]["message"].startswith("metadata_unknown: reading the model takes longer")


async def test_a_plan_writes_nothing_at_all(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=8, gib=40)
    await plan(api, manifest("a"))  # a first read may set hint bits of committed rows
    moved = [await wal_bytes_of_a_plan(api, db) for _ in range(3)]
    assert min(moved) < 1024, f"80 instances were planned each time, and the log moved by {moved} bytes"


async def wal_bytes_of_a_plan(api: ServedApi, db: Database) -> int:
    """The server sometimes writes by itself; a plan that wrote would do so every time."""
    async with db.connection() as connection:
        before = await connection.fetchval("select pg_current_wal_insert_lsn()")
        await plan(api, *(manifest(f"a{n}", args={"memory": "4GiB"}, replicas=4) for n in range(20)))
        return int(await connection.fetchval("select pg_current_wal_insert_lsn() - $1", before))


def test_many_manifests_on_many_workers_are_planned_within_a_second() -> None:
    """100 manifests on 1,000 workers of 8 GPUs; a machine that is busy with other tests gets three times as long."""
    fleet = Fleet()
    for number in range(1000):
        fleet.add(f"w{number}", [80 * GIB] * 8)
    inventory, planned = fleet.inventory(), []
    for number in range(100):
        spec = DeploymentSpec.model_validate({"engine": "simulated", "args": {"heads": 32}, "priority": number})
        planned.append(
            ManifestEffect(f"m{number}", f"uid-{number}", spec, "create", 1, Need((10 + 7 * number) * GIB, heads=32))
        )
    began = time.process_time()
    items = plan_items(inventory, planned)
    assert time.process_time() - began < 3.0
    assert [item.fits for item in items] == [(10 + 7 * number) <= 640 for number in range(100)]


def test_a_full_cluster_is_planned_as_quickly() -> None:
    """As above, with every GPU claimed, and victims to find for the first manifest."""
    fleet, holders = Fleet(), []
    for number in range(1000):
        fleet.add(f"w{number}", [80 * GIB] * 8)
        for index in range(8):
            fleet.claim(f"w{number}/{index}", 70 * GIB)
            claims = (PlannedClaim(f"w{number}/{index}", 70 * GIB, 0, False, 0),)
            holders.append(Holder(f"i{number}-{index}", 100, 0.0, frozenset({f"id-w{number}"}), claims))
    spec = DeploymentSpec.model_validate({"engine": "simulated", "args": {"heads": 32}})
    planned = [
        ManifestEffect(f"m{number}", f"uid-{number}", spec, "create", 1, Need((300 + number) * GIB, heads=32))
        for number in range(100)
    ]
    inventory = fleet.inventory()
    began = time.process_time()
    items = plan_items(inventory, planned, Holders(tuple(holders)))
    assert time.process_time() - began < 3.0
    assert not any(item.fits for item in items)
    assert items[0].explain is not None
    assert "ended on" in items[0].explain.advice[-1]
