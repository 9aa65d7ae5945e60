"""Which GPUs could be selected by hand, as a plan tells it with `candidates`."""

from datetime import UTC, datetime
from typing import Any

from controller.store.core.database import Database
from support.api_calls import PLAN, deployment, plan, problems
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi

SINCE = "2026-01-02T03:04:05Z"
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}


async def candidates(api: ServedApi, *manifests: dict[str, Any], role: str = "operator") -> dict[str, Any]:
    body = {"manifests": list(manifests), "candidates": True}
    status, answer = await api.call("POST", PLAN, role=role, json=body)
    assert status == 200, answer
    return dict(answer)


def said(found: dict[str, Any]) -> dict[str, tuple[str, str, str | None]]:
    """By UUID: code, words and moment. The columns are of one length, and selectable is what has no code."""
    columns = [found[name] for name in ("worker", "index", "uuid", "selectable", "code", "message", "since")]
    assert len({len(column) for column in columns}) == 1
    assert found["selectable"] == [not code for code in found["code"]]
    return dict(zip(found["uuid"], zip(found["code"], found["message"], found["since"], strict=True), strict=True))


async def troubled(db: Database) -> None:
    """Of eight GPUs, two can be taken: one of w1, and one of w4 that is used in part."""
    await add_host(db, "w1", gpus=4)
    await add_host(db, "w2", gpus=1, phase="lost")
    await add_host(db, "w3", gpus=1)
    await add_host(db, "w4", gpus=2)
    uid = await add_deployment(db, "other", resources={"gpus": 1})
    for gpu, gib, whole in (("GPU-w1-2", 40, True), ("GPU-w4-0", 15, False), ("GPU-w4-1", 25, False)):
        await add_instance(db, uid, gpu.lower(), phase="running", epoch=1)
        await claim(db, gpu, gpu.lower(), gib * GIB, exclusive=whole)
    async with db.transaction() as c:
        moment = datetime.fromisoformat(SINCE).astimezone(UTC)
        await c.execute("update workers set phase_since = $1 where name = 'w2'", moment)
        await c.execute("update workers set cordoned = true where name = 'w3'")
        await c.execute("update devices set health = 'unhealthy' where uuid = 'GPU-w1-1'")
        await c.execute("update devices set cordoned = true where uuid = 'GPU-w1-3'")
        await c.execute(
            """insert into events (at, actor, objects, reason, message, evidence)
               values ($1, 'agent', array['gpu:GPU-w1-1'], 'gpu_unhealthy', 'it is', '{}')""",
            moment,
        )


async def test_every_gpu_has_its_reason_in_words_with_its_moment(api: ServedApi, db: Database) -> None:
    await troubled(db)
    body = await candidates(api, deployment("a", resources=SMALL))
    found = body["candidates"]["a"]
    assert said(found) == {
        "GPU-w1-0": ("", "", None),
        "GPU-w1-1": ("gpu_unhealthy", "unhealthy", SINCE),
        "GPU-w1-2": ("gpu_in_use", "another instance has it whole", None),
        "GPU-w1-3": ("gpu_cordoned", "cordoned", None),
        "GPU-w2-0": ("not_ready", "not ready", SINCE),
        "GPU-w3-0": ("cordoned", "the worker is cordoned", None),
        "GPU-w4-0": ("", "", None),
        "GPU-w4-1": ("need_gt_free", "need 20.00 GiB, 15.00 free", None),
    }
    assert [found["workers"][n] for n in found["worker"]] == [uuid.split("-")[1] for uuid in found["uuid"]]
    (item,) = body["items"]
    assert {uuid: said(found)[uuid][0] for uuid in item["gpus"]} == {item["gpus"][0]: ""}
    for uuid, (code, _, _) in said(found).items():
        (by_hand,) = (await plan(api, deployment("a", resources=SMALL, placement={"gpus": [uuid]})))["items"]
        assert by_hand["fits"] is (not code)
        assert by_hand["gpus"] == ([] if code else [uuid])
    assert (await plan(api, deployment("a", resources=SMALL)))["candidates"] == {}, "only where they are asked for"


async def test_its_own_selection_is_set_aside(api: ServedApi, db: Database) -> None:
    await troubled(db)
    free = await candidates(api, deployment("a", resources=SMALL))
    for placement in ({"gpus": ["GPU-w4-0"]}, {"workers": ["w4"]}, {"gpus": ["GPU-none", "w2:0"]}):
        chosen = await candidates(api, deployment("a", resources=SMALL, placement=placement))
        assert chosen["candidates"] == free["candidates"]


async def test_an_instance_of_several_gpus_needs_enough_on_a_worker(api: ServedApi, db: Database) -> None:
    await troubled(db)
    two = {"gpus": 2, "gpu_memory": "10GiB"}
    found = said((await candidates(api, deployment("a", resources=two)))["candidates"]["a"])
    assert found["GPU-w1-0"] == ("count_mismatch", "need 2 such GPUs on one worker, 1 there", None)
    assert (found["GPU-w4-0"][0], found["GPU-w4-1"][0]) == ("", "")
    none = said((await candidates(api, deployment("a", resources={"gpus": 0})))["candidates"]["a"])
    assert none["GPU-w1-0"] == ("count_mismatch", "the instance takes no GPU", None)


async def test_what_comes_before_it_in_the_queue_is_taken(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=40)
    whole = {"gpus": 1, "exclusive": True}
    both = await candidates(
        api, deployment("late", resources=whole), deployment("first", priority=500, resources=whole)
    )
    (late,), (first,) = ([one["gpus"] for one in both["items"] if one["deployment"] == n] for n in ("late", "first"))
    assert set(both["candidates"]) == {"late", "first"}
    of_late, of_first = said(both["candidates"]["late"]), said(both["candidates"]["first"])
    assert (of_late[late[0]][0], of_late[first[0]][0]) == ("", "exclusive_conflict")
    assert {code for code, _, _ in of_first.values()} == {""}


async def test_what_stops_for_it_can_be_selected(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    whole = {"resources": {"gpus": 1, "exclusive": True}}
    uid = await add_deployment(db, "low", **whole)
    await add_instance(db, uid, "low-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "low-1", 40 * GIB, exclusive=True)
    preempts = await candidates(api, deployment("high", priority=500, preempt=True, **whole))
    anew = await candidates(api, deployment("low", env={"LANG": "b"}, **whole))
    for body, name in ((preempts, "high"), (anew, "low")):
        assert [one["gpus"] for one in body["items"]] == [["GPU-w-0"]]
        assert body["candidates"][name]["selectable"] == [True]
    unchanged = await candidates(api, deployment("low", **whole))
    assert unchanged["items"] == []
    assert unchanged["candidates"]["low"]["code"] == ["exclusive_conflict"], "one more would not fit"


async def test_an_unknown_need_allows_none_and_says_why(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    body = await candidates(api, deployment("a", engine="transformers", model="path:/models/tiny", replicas=0))
    assert said(body["candidates"]["a"])["GPU-w-0"] == ("metadata_unknown", "the folder cannot be read here", None)


async def test_only_for_a_few_deployments_at_once(api: ServedApi) -> None:
    body = {"manifests": [deployment(f"a{n}") for n in range(6)], "candidates": True}
    assert (await problems(api, "POST", PLAN, body))["candidates"] == "must be with at most 5 deployments, got 6"
