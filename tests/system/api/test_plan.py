"""Plan: the checks and the placement of an apply, without a write."""

import asyncio
import threading
import time
from typing import Any

import pytest

from controller.api.dry_run import kept_inventory
from controller.api.dry_run import manifests as manifests_module
from controller.api.dry_run.effects import plan_items
from controller.api.dry_run.manifests import ManifestEffect
from controller.api.dry_run.rehearsal import Present
from controller.domain.admission import Holder, Holders
from controller.domain.placement import Need, PlannedClaim
from controller.leader.placement_passes import InventoryCache
from controller.store.access.secrets import put_secret
from controller.store.core.database import Database
from rig.simulated_args import known_here
from schemas.manifest.deployment import DeploymentSpec
from support.api_calls import deployment, plan, plan_problems, problems
from support.builders.apply import apply_spec
from support.builders.fleet import Fleet
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, rows
from support.leading.served_api import ServedApi

_TABLES = ("deployments", "revisions", "instances", "claims", "events", "commands", "devices", "workers")


async def everything(db: Database) -> list[list[dict[str, Any]]]:
    return [await rows(db, f"select t::text as row from {table} t order by 1") for table in _TABLES]  # noqa: S608 - constants


async def test_manifests_are_planned_together_by_priority(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=40)
    before = await everything(db)
    body = await plan(
        api,
        deployment("low", replicas=2, resources={"gpus": 1, "exclusive": True}),
        deployment("high", priority=500, resources={"gpus": 1, "exclusive": True}),
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


async def test_names_of_models_that_are_taken_are_named(api: ServedApi, db: Database) -> None:
    await apply_spec(
        db, "chat", DeploymentSpec.model_validate({"engine": "simulated", "serving": {"aliases": ["gpt"]}})
    )
    problems = await plan_problems(api, deployment("a"), deployment("b", serving={"aliases": ["c", "gpt"]}))
    assert list(problems) == ["[1].serving.aliases"]
    assert "'gpt' is an alias of deployment 'chat' already" in problems["[1].serving.aliases"]


async def test_pending_instances_come_first_and_keep_their_reservation(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=3, gib=40)
    uids = [await add_deployment(db, name, resources={"gpus": n}) for name, n in (("one", 1), ("big", 3), ("next", 1))]
    await add_instance(db, uids[0], "one-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "one-1", 40 * GIB)
    await add_instance(db, uids[2], "next-1")
    async with db.connection() as connection:
        need = {"memory_mib": None, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
        await connection.execute("update revisions set need = $1", need)
    first = deployment("small", resources={"gpus": 1})
    both = await plan(api, {**first, "replicas": 2}), await plan(api, {**first, "replicas": 2, "priority": 900})
    assert [[item["fits"] for item in body["items"]] for body in both] == [[True, False], [True, True]]
    await add_instance(db, uids[1], "big-1")
    async with db.connection() as connection:
        await connection.execute("update instances set phase = 'failed' where id = 'next-1'")
        await connection.execute("update instances set phase_since = now() - interval '2 min' where id = 'big-1'")
    (item,) = (await plan(api, first))["items"]
    assert not item["fits"]
    assert "capacity is reserved for big-1 on w" in item["explain"]["message"]


async def test_each_change_is_named(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    spec = {"resources": {"gpus": 1, "gpu_memory": "30GiB"}}
    uid = await add_deployment(db, "a", **spec)
    await add_instance(db, uid, "a-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "a-1", 30 * GIB)

    unchanged = await plan(api, deployment("a", **spec))
    assert (unchanged["changes"], unchanged["items"]) == ({"a": "unchanged"}, []), "it runs already"
    update = await plan(api, deployment("a", replicas=2, **spec))
    assert update["changes"] == {"a": "update"}
    assert [one["fits"] for one in update["items"]] == [False], "one more does not fit beside it"
    replace = await plan(api, deployment("a", env={"LANG": "b"}, **spec))
    assert replace["changes"] == {"a": "replace"}
    assert [one["gpus"] for one in replace["items"]] == [["GPU-w-0"]], "the old one stops first"
    other = await plan(api, deployment("b", **spec))
    assert [one["fits"] for one in other["items"]] == [False]


async def test_only_an_unknown_need_is_analysed(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    model = {"engine": "transformers", "model": "path:/models/tiny"}
    unknown = await plan(api, deployment("a", **model))
    (item,) = unknown["items"]
    assert not item["fits"]
    assert "metadata_unknown: the folder cannot be read here" in item["explain"]["message"]
    api.surroundings.need = Need(memory_mib=10 * GIB)
    (item,) = (await plan(api, deployment("a", **model)))["items"]
    assert (item["fits"], item["memory_mib_per_gpu"]) == (True, 10 * GIB)
    assert len(api.surroundings.analysed) == 2
    await add_deployment(db, "other", **model)
    async with db.transaction() as connection:
        need = {"memory_mib": 20 * GIB, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
        await connection.execute("update revisions set need = $1", need)
    (item,) = (await plan(api, deployment("a", **model)))["items"]
    assert item["memory_mib_per_gpu"] == 20 * GIB
    assert len(api.surroundings.analysed) == 2, "a known need is not analysed again"


async def test_a_named_worker_is_checked_like_any_other(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    await add_host(db, "silent", gpus=1, phase="unreachable")
    (item,) = (await plan(api, deployment("a", resources={"gpus": 1}, placement={"workers": ["silent"]})))["items"]
    assert not item["fits"]
    assert "not_ready" in item["explain"]["rejected"]


async def test_a_plan_refuses_the_manifests_that_an_apply_refuses(api: ServedApi) -> None:
    assert "did you mean 'replicas'" in (await plan_problems(api, deployment("a", replcas=1)))["replcas"]
    found = await plan_problems(api, deployment("a", runtime="docker"), deployment("b", runtime="docker"))
    assert found.keys() == {"[0].image", "[1].image"}
    assert (await plan_problems(api, deployment("a", update="rolling", restart="never"))).keys() == {"update"}
    assert "manifests" in await plan_problems(api)
    assert "at most 10000" in (await plan_problems(api, deployment("a", replicas=20_000)))["replicas"]


async def test_engine_layout_and_parts_are_shown(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=4, gib=40)
    with known_here():
        (item,) = (await plan(api, deployment("a", args={"memory": "60GiB", "heads": 32})))["items"]
    assert item["engine"] == "simulated"
    assert item["layout"] == {"gpus": 2, "workers": 1, "tp": 2, "pp": 1, "dp": 1}
    assert (item["need"]["parts"], item["need"]["memory_mib"]) == ({"simulated": 60 * GIB}, 60 * GIB)


async def test_advice_on_what_would_make_it_fit(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    (item,) = (await plan(api, deployment("a", args={"memory": "60GiB"})))["items"]
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
        noted = found | {"note": "2nd in the queue", "advice": []}
        await connection.execute("update instances set explain = $1", noted)
    again = await api.get("/api/v1/instances/b-1/explain")
    assert (again["note"], again["message"]) == ("2nd in the queue", f"{found['message']}; 2nd in the queue")
    async with db.transaction() as connection:
        await connection.execute("update instances set phase = 'failed'")
    status, answer = await api.call("GET", "/api/v1/instances/b-1/explain")
    assert (status, answer["error"]["code"]) == (409, "not_waiting")


async def test_the_victims_of_a_preemption_are_named(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    uid = await add_deployment(db, "low", resources={"gpus": 1, "exclusive": True})
    await add_instance(db, uid, "low-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "low-1", 40 * GIB, exclusive=True)
    whole = {"gpus": 1, "exclusive": True}
    (item,) = (await plan(api, deployment("high", priority=500, preempt=True, resources=whole)))["items"]
    assert (item["fits"], item["worker"], item["preempts"]) == (True, "w", ["low-1"])
    assert "preempts low-1" in item["explain"]["note"]
    (item,) = (await plan(api, deployment("high", priority=500, resources=whole)))["items"]
    assert (item["preempts"], item["explain"]["advice"]) == ([], ["fits once low-1 has ended on w"])


async def test_an_instance_that_cannot_start_preempts_nothing_in_a_plan(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    uid = await add_deployment(db, "low", resources={"gpus": 1, "exclusive": True})
    await add_instance(db, uid, "low-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "low-1", 40 * GIB, exclusive=True)
    whole = {"gpus": 1, "exclusive": True}
    high = deployment("high", priority=500, preempt=True, resources=whole, env={"HF_TOKEN": {"secret": "token"}})
    (item,) = (await plan(api, high))["items"]
    assert (item["fits"], item["preempts"]) == (False, [])
    assert "preempts nothing: secret 'token'" in item["explain"]["note"]
    await put_secret(db, "token", "value")
    (item,) = (await plan(api, high))["items"]
    assert (item["fits"], item["preempts"]) == (True, ["low-1"])


async def test_a_slow_analysis_leaves_the_other_manifests_planned(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_host(db, "w", gpus=8, gib=80)
    monkeypatch.setattr(manifests_module, "_ANALYSIS_LIMIT_S", 0.05)
    api.surroundings.delay_s = 60.0
    hangs = deployment("hangs", engine="vllm", model="hf:org/slow")
    fits = deployment("fits", engine="vllm", model="hf:org/known", resources={"gpu_memory": "20GiB"})
    items = {item["deployment"]: item for item in (await plan(api, hangs, fits))["items"]}
    assert items["fits"]["fits"]
    assert items["hangs"]["explain"]["message"].startswith("metadata_unknown: reading the model takes longer")


async def test_a_plan_writes_nothing(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=8, gib=40)
    await plan(api, deployment("a"))  # a first read may write hint bits
    moved = [await wal_bytes_of_a_plan(api, db) for _ in range(3)]
    assert min(moved) < 1024, f"80 instances were planned each time, and the log moved by {moved} bytes"


async def wal_bytes_of_a_plan(api: ServedApi, db: Database) -> int:
    """The server writes something of its own now and then; a plan that writes would do so every time."""
    async with db.connection() as connection:
        before = await connection.fetchval("select pg_current_wal_insert_lsn()")
        await plan(api, *(deployment(f"a{n}", args={"memory": "4GiB"}, replicas=4) for n in range(20)))
        return int(await connection.fetchval("select pg_current_wal_insert_lsn() - $1", before))


@known_here()
def test_many_manifests_on_many_workers_are_planned_within_a_second() -> None:
    """100 manifests on 1,000 workers of 8 GPUs. The limit is three times the aim, for a busy machine."""
    fleet = Fleet()
    for number in range(1000):
        fleet.add(f"w{number}", [80 * GIB] * 8)
    inventory, effects = fleet.inventory(), []
    for number in range(100):
        spec = DeploymentSpec.model_validate({"engine": "simulated", "args": {"heads": 32}, "priority": number})
        effects.append(
            ManifestEffect(f"m{number}", f"uid-{number}", spec, "create", 1, Need((10 + 7 * number) * GIB, heads=32))
        )
    began = time.process_time()
    items = plan_items(Present(inventory), effects)
    assert time.process_time() - began < 3.0
    assert [item.fits for item in items] == [(10 + 7 * number) <= 640 for number in range(100)]


@known_here()
def test_a_full_cluster_is_planned_within_a_second() -> None:
    """As above, with every GPU in use, so that the first advice names the instances whose end would help."""
    fleet, holders = Fleet(), []
    for number in range(1000):
        fleet.add(f"w{number}", [80 * GIB] * 8)
        for index in range(8):
            fleet.claim(f"w{number}/{index}", 70 * GIB)
            claims = (PlannedClaim(f"w{number}/{index}", 70 * GIB, 0, False, 0),)
            holders.append(Holder(f"i{number}-{index}", 100, 0.0, frozenset({f"id-w{number}"}), claims))
    spec = DeploymentSpec.model_validate({"engine": "simulated", "args": {"heads": 32}})
    effects = [
        ManifestEffect(f"m{number}", f"uid-{number}", spec, "create", 1, Need((300 + number) * GIB, heads=32))
        for number in range(100)
    ]
    inventory = fleet.inventory()
    began = time.process_time()
    items = plan_items(Present(inventory, holders=Holders(tuple(holders))), effects)
    assert time.process_time() - began < 3.0
    assert not any(item.fits for item in items)
    assert items[0].explain is not None
    assert "ended on" in items[0].explain.advice[-1]


async def test_unknown_names_are_warned_of_and_ambiguous_ones_refused(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=3, gib=40)
    async with db.connection() as connection:
        await connection.execute("update devices set index = 0, vendor = 'amd' where uuid = 'GPU-w-1'")
    pool = {"workers": ["w", "gone"], "gpus": ["w:2", "w:7"]}
    wanted = deployment("pool", resources={"gpus": 1}, placement=pool)
    said = [
        "placement.workers: unknown worker gone; the others are used",
        "placement.gpus: unknown GPU w:7; the others are used",
    ]
    body = await plan(api, wanted)
    assert body["warnings"] == [f"pool: {line}" for line in said]
    assert body["items"][0]["gpus"] == ["GPU-w-2"]
    _, applied = await api.call("PUT", "/api/v1/deployments/pool", json=wanted)
    assert applied["warnings"] == said

    both = deployment("both", resources={"gpus": 1}, placement={"gpus": ["w:0"]})
    problems = await plan_problems(api, both)
    ambiguous = "w:0 means GPU-w-0 (nvidia) or GPU-w-1 (amd); write the UUID"
    assert problems == {"placement.gpus": ambiguous}


async def test_an_ambiguous_name_hides_no_other_problem(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=40)
    async with db.connection() as connection:
        await connection.execute("update devices set index = 0, vendor = 'amd' where uuid = 'GPU-w-1'")
    first = deployment("first", resources={"gpus": 1}, placement={"gpus": ["w:0"]})
    second = deployment("second", utilization_policy="no-such-policy")
    for path in ("/api/v1/apply", "/api/v1/plan"):
        refused = await problems(api, "POST", path, {"manifests": [first, second]})
        assert refused.keys() == {"[0].placement.gpus", "[1].utilization_policy"}, path


async def test_a_scale_down_in_the_file_gives_its_capacity_to_what_follows(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=40)
    whole = {"gpus": 1, "exclusive": True}
    uid = await add_deployment(db, "low", resources=whole, replicas=2)
    for number in range(2):
        await add_instance(db, uid, f"low-{number}", phase="running", epoch=1)
        await claim(db, f"GPU-w-{number}", f"low-{number}", 40 * GIB, exclusive=True)
    new = deployment("new", resources=whole, replicas=2)
    for replicas, fit in ((2, [False, False]), (1, [True, False]), (0, [True, True])):
        answer = await plan(api, deployment("low", resources=whole, replicas=replicas), new)
        assert answer["changes"]["low"] == ("unchanged" if replicas == 2 else "update")
        assert [item["fits"] for item in answer["items"]] == fit
    # What is scaled down is not preempted as well; what stays has the priority that the file gives it.
    high = deployment("new", resources=whole, replicas=2, preempt=True, priority=150)
    items = (await plan(api, deployment("low", resources=whole, replicas=1), high))["items"]
    assert [len(item["preempts"]) for item in items] == [0, 1]
    raised = deployment("low", resources=whole, replicas=1, priority=200)
    items = (await plan(api, raised, high))["items"]
    assert [(item["fits"], item["preempts"]) for item in items] == [(True, []), (False, [])]


async def test_a_plan_says_what_is_assumed_of_a_model_that_was_not_read(api: ServedApi) -> None:
    """The analysis fails here, as for a gated model."""
    stated = deployment("a", engine="vllm", model="hf:org/name", resources={"gpus": 2, "gpu_memory": "20GiB"})
    (item,) = (await plan(api, stated))["items"]
    assert item["need"]["notes"][0].startswith("assumed: tp 2, pp 1, dp 1")
    assert item["need"]["notes"][1] == "the model was not read: the folder cannot be read here"
    unstated = deployment("b", engine="vllm", model="hf:org/name")
    (item,) = (await plan(api, unstated))["items"]
    assert "metadata_unknown" in item["explain"]["message"]


async def test_fields_say_what_changes_and_what_is_replaced(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=80)
    small = {"gpus": 1, "gpu_memory": "20GiB"}
    status, made = await api.call(
        "PUT", "/api/v1/deployments/chat", json={"engine": "simulated", "replicas": 2, "resources": small}
    )
    assert status in (200, 201), made
    await add_instance(db, made["uid"], "chat-1", phase="running", epoch=1)
    await add_instance(db, made["uid"], "chat-2", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "chat-1", 20 * GIB)
    await claim(db, "GPU-w-1", "chat-2", 20 * GIB)
    same = await plan(api, deployment("chat", replicas=2, resources=small))
    assert (same["field_changes"], same["replaces"], same["generations"]) == ({}, {}, {"chat": made["generation"]})
    body = await plan(api, deployment("chat", replicas=2, priority=200, resources={**small, "gpu_memory": "24GiB"}))
    assert body["field_changes"] == {
        "chat": [
            {"field": "priority", "old": 100, "new": 200, "effect": "in_place"},
            {"field": "resources.gpu_memory", "old": "20GiB", "new": "24GiB", "effect": "replaces"},
        ]
    }
    assert body["replaces"] == {"chat": 2}
    status, error = await api.call(
        "PUT", "/api/v1/deployments/chat", json={"engine": "simulated"}, headers={"If-Match": '"7"'}
    )
    assert (status, error["error"]["code"]) == (412, "generation_conflict")


async def test_an_idle_inventory_is_let_go(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inventory, "KEPT_S", 0.2)
    await plan(api, deployment("a"))
    kept = api.app[kept_inventory.KEPT_INVENTORY]
    async with asyncio.timeout(20):
        while kept._cache is not None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    assert (await plan(api, deployment("a")))["items"]


async def test_the_inventory_is_copied_beside_the_loop(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    copying, go, copy = threading.Event(), threading.Event(), InventoryCache.copy

    def slow(cache: InventoryCache) -> InventoryCache:
        copying.set()
        assert go.wait(10), "the loop answers others meanwhile"
        return copy(cache)

    monkeypatch.setattr(InventoryCache, "copy", slow)
    planning = asyncio.create_task(plan(api, deployment("a")))
    assert await asyncio.to_thread(copying.wait, 10)
    assert (await api.call("GET", "/api/v1/me"))[0] == 200
    go.set()
    assert (await planning)["items"]
