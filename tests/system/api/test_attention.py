"""`GET /attention` over rows: four troubles at once are four entries, and each goes when it is mended."""

import asyncio
import time
import uuid
from typing import Any

import pytest

from controller.api.errors import ApiError
from controller.api.resources import ledger
from controller.api.resources.ledger import LedgerVerdict
from controller.decide.attention import find_attention
from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.ledger_audit import audit
from schemas.api.audit import AuditView
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi
from support.leading.served_hub import eventually

PATH = "/api/v1/attention"
ON_W3 = 300
FITS_NOWHERE = "0/3 fit: 3 VRAM (need 80 GiB, best free 70 on w1)"


async def execute(db: Database, query: str, *args: Any) -> None:
    async with db.transaction() as connection:
        await connection.execute(query, *args)


async def four_troubles(db: Database) -> None:
    """A crash loop, an idle holder under a dry run, one pending, and a lost worker with many instances."""
    for name in ("w1", "w2", "w3"):
        await add_host(db, name, gpus=4, gib=400)
    many = await add_deployment(db, "many", replicas=ON_W3)
    for n in range(ON_W3):
        await add_instance(db, many, f"many-{n}", phase="unreachable", epoch=1)
        await claim(db, f"GPU-w3-{n % 4}", f"many-{n}", GIB)
    await execute(db, "update workers set phase = 'lost', phase_since = now() - interval '1 min' where name = 'w3'")

    loops = await add_deployment(db, "loops", replicas=2)
    for n in range(2):
        await add_instance(db, loops, f"loops-{n}", phase="backoff", epoch=3)
        await claim(db, "GPU-w1-0", f"loops-{n}", GIB, epoch=3)
    await execute(
        db,
        """update instances set failures = 2, reason = 'crash', message = 'exited with code 3; restarts in 20 s'
            where deployment_uid = $1""",
        uuid.UUID(loops),
    )
    async with db.transaction() as c:
        for failures in (1, 2):
            objects = ("instance:loops-0", "instance:loops-1")
            await write_events(c, [NewEvent("backoff", "exited with code 3", objects, {"failures": failures})])

    lazy = await add_deployment(db, "lazy")
    await add_instance(db, lazy, "lazy-0", phase="running", epoch=1)
    await claim(db, "GPU-w1-1", "lazy-0", GIB)
    await execute(
        db,
        """insert into policy_verdicts (instance_id, epoch, deployment_uid, policy, policy_generation, action, dry_run,
                                        verdict, reason, message, since, acted)
           values ('lazy-0', 1, $1, 'stop-idle', 1, 'stop', true, 'idle', 'idle', 'below 50 % for 1m', now(),
                   'dry_run:stop')""",
        uuid.UUID(lazy),
    )

    big = await add_deployment(db, "big")
    await add_instance(db, big, "big-0")
    await execute(
        db,
        """update instances set phase_since = now() - interval '2 min', reason = 'need_gt_free', message = $1
            where id = 'big-0'""",
        FITS_NOWHERE,
    )


async def causes(api: ServedApi) -> list[tuple[str, str, int]]:
    return [(one["cause"], one["object"]["name"], one["count"]) for one in (await api.get(PATH))["items"]]


async def test_four_troubles_are_four_entries_and_go_when_mended(api: ServedApi, db: Database) -> None:
    assert await causes(api) == []
    await four_troubles(db)
    status, answer = await api.call("GET", PATH, role="viewer")
    assert (status, answer["more"], answer["next"]) == (200, 0, None)
    lost, loop, pending, idle = answer["items"]
    assert await causes(api) == [
        ("worker", "w3", ON_W3),
        ("crash_loop", "loops", 2),
        ("pending", "big", 1),
        ("idle", "lazy", 1),
    ]
    assert [one["severity"] for one in answer["items"]] == ["error", "error", "warning", "notice"]
    assert all(one["since"] and one["title"] and one["message"] and one["advice"] for one in answer["items"])
    assert (lost["code"], len(lost["subjects"])) == ("worker_lost", 20)
    events = (await api.get("/api/v1/events?object=instance/loops-0"))["items"]
    assert loop["since"] == min(event["at"] for event in events), "the first failure of the row"
    assert (loop["code"], loop["message"]) == ("crash", "exited with code 3; restarts in 20 s")
    assert pending["message"] == FITS_NOWHERE
    assert idle["code"] == "policy_would_stop"
    assert idle["message"].startswith("dry run: policy stop-idle would stop lazy since ")

    await execute(db, "update workers set phase = 'ready' where name = 'w3'")
    assert [cause for cause, *_ in await causes(api)] == ["crash_loop", "pending", "idle"]
    await execute(db, "update instances set failures = 0, phase = 'running' where id like 'loops-%'")
    assert [cause for cause, *_ in await causes(api)] == ["pending", "idle"]
    await execute(db, "update instances set phase = 'scheduled' where id = 'big-0'")
    assert [cause for cause, *_ in await causes(api)] == ["idle"]
    await execute(db, "update policy_verdicts set verdict = 'busy'")
    assert await causes(api) == []


async def test_what_is_wrong_with_the_cluster_itself(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2)
    await execute(
        db,
        """update workers set cordoned = true, conditions = '[{"type": "Compatible", "status": "false",
             "reason": "no_common_protocol", "message": "no common protocol: the agent speaks 1", "since":
             "2026-01-01T00:00:00Z"}, {"type": "ContainersUsable", "status": "false", "reason": "runtime_unsupported"},
             {"type": "GpusHealthy", "status": "false", "reason": "xid_79", "message": "told by the GPU itself"}]'
        """,
    )
    await execute(db, "update devices set health = 'unhealthy', health_reason = 'xid_79: lost' where uuid = 'GPU-w-1'")
    uid = await add_deployment(db, "stuck")
    await execute(db, "update deployments set reason = 'reconcile_failing', message = 'the step fails'")
    unread = await add_deployment(db, "unread")
    await add_instance(db, unread, "unread-0", phase="analyzing")
    async with db.transaction() as c:
        await write_events(c, [NewEvent("metadata_unknown", "x", (f"deployment:{unread}",))])
    await execute(
        db,
        """update revisions set need_error = '{"message": "the hub does not answer"}' where deployment_uid <> $1""",
        uuid.UUID(uid),
    )
    assert await causes(api) == [
        ("reconcile", "stuck", 1), ("model", "unread", 1), ("worker_condition", "w", 1), ("gpu", "GPU-w-1", 1),
    ]  # fmt: skip
    (model,) = (one for one in (await api.get(PATH))["items"] if one["cause"] == "model")
    (vain,) = (await api.get("/api/v1/events?reason=metadata_unknown"))["items"]
    assert model["since"] == vain["at"], "not when the latest reading began"
    api.surroundings.leading = False
    (first, *_) = (await api.get(PATH))["items"]
    assert (first["severity"], first["cause"]) == ("critical", "no_leader")
    assert first["object"] == {"kind": "cluster", "name": ""}


async def test_a_broken_invariant_is_told_until_it_is_mended(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    await add_instance(db, await add_deployment(db, "d"), "d-0", phase="running", epoch=1)
    assert (await api.get("/api/v1/audit"))["ok"] is False, "it runs without a claim"
    assert await causes(api) == [], "the leader has not looked yet"
    async with db.transaction() as c:
        await write_events(c, [NewEvent("invariant_violated", "x", ("controller:leader",))])
    assert [cause for cause, *_ in await causes(api)] == ["invariant"]
    await execute(db, "delete from instances")
    assert (await api.get("/api/v1/audit"))["ok"] is True

    async def mended() -> bool:
        return await causes(api) == []

    await eventually(mended, "the entry is gone")


async def test_the_ledger_is_audited_once_in_a_while(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    audits, now = 0, 1000.0

    async def counted(connection: Any) -> AuditView:
        nonlocal audits
        audits += 1
        return await audit(connection)

    monkeypatch.setattr(ledger, "audit", counted)
    verdict = LedgerVerdict(lambda: now)

    async def seen() -> tuple[int, int]:
        """Violations, and audits so far."""
        async with db.snapshot() as connection:
            return len(await verdict.violations(connection)), audits

    assert await seen() == (0, 0), "the leader has found nothing"
    await add_instance(db, await add_deployment(db, "d"), "d-0", phase="running", epoch=1)
    event = NewEvent("invariant_violated", "x", ("controller:leader",))
    async with db.transaction() as c:
        await write_events(c, [event])
    assert [await seen() for _ in range(3)] == [(1, 1)] * 3
    await execute(db, "delete from instances")
    now += ledger.BROKEN_S
    assert [await seen() for _ in range(3)] == [(0, 2)] * 3
    now += ledger.SOUND_S - 1
    assert await seen() == (0, 2), "an event that is told no longer costs next to nothing"
    async with db.transaction() as c:
        await write_events(c, [event])
    assert await seen() == (0, 3), "a new one does"


async def test_those_that_ask_at_once_share_a_look(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(facts: Any) -> Any:
        nonlocal looks
        looks += 1
        return find_attention(facts)

    monkeypatch.setattr(ledger, "find_attention", counted)
    answers = await asyncio.gather(*(api.get(PATH) for _ in range(30)))
    assert [one["items"] for one in answers] == [[]] * 30
    assert looks < 10


async def test_an_inference_key_may_not_read_it(api: ServedApi) -> None:
    assert (await api.call("GET", PATH, role="inference"))[0] == 403


async def test_those_that_share_a_failure_each_get_their_own_request_id(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ApiError(409, "broken", "it cannot be told")

    async def fail(*_: Any, **__: Any) -> None:
        await asyncio.sleep(0.2)
        raise shared

    monkeypatch.setattr(ledger, "read_attention", fail)
    ids = [f"mine-{n}" for n in range(10)]
    answers = await asyncio.gather(*(api.call("GET", PATH, headers={"X-Request-ID": one}) for one in ids))
    assert [body["error"]["details"]["request_id"] for _, body in answers] == ids
    assert shared.details == {}


async def test_the_limit_does_not_leave_a_thread_behind(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(facts: Any) -> Any:
        time.sleep(2.0)
        return find_attention(facts)

    monkeypatch.setattr(ledger, "READ_LIMIT_S", 1.5)
    monkeypatch.setattr(ledger, "find_attention", slow)
    assert (await api.call("GET", PATH))[0] == 200
