"""A start that lacks a secret, on a database: no crash, a reason of its own, and a start as soon as it is mended."""

from typing import Any

import pytest

from controller.domain.access.secret_scopes import LacksSecret
from controller.domain.restart_delays import RestartSettings
from controller.runtime.outcome import Requeue
from controller.store.access.secrets import delete_secret, put_secret, scope_secret
from controller.store.core.database import Database
from controller.store.deployments.commands import Answer, write_answers
from controller.store.views.attention import read_attention
from support.database.ledger import add_deployment, add_host, report, rows
from support.leading.leader_term import LeaderTerm

ENV = {"TOKEN": {"secret": "hf"}, "OTHER": {"secret": "other"}, "PLAIN": "x"}
NEWEST_START = "update commands set sent_at = clock_timestamp() where state = 'open' returning id, worker_id"


@pytest.fixture
async def term(db: Database) -> Any:
    made = await LeaderTerm.begin(db, settings=RestartSettings())
    await add_host(db, "w1")
    yield made
    await made.aclose()


async def refuse(db: Database, code: str = LacksSecret.MISSING) -> None:
    """What the hub does with the newest start, whose secret it cannot have."""
    async with db.transaction() as c:
        row = await c.fetchrow(NEWEST_START)
        why = "secret 'hf' does not exist; set it with: gpuward secret set hf"
        await write_answers(c, [Answer(row["id"], str(row["worker_id"]), "refused", code, why)])


async def instance(db: Database) -> dict[str, Any]:
    (row,) = await rows(
        db,
        """select phase, reason, message, failures, epoch, extract(epoch from not_before - now())::float8 as left_s,
                  (select count(*) from claims) as claims from instances""",
    )
    return row


async def lacking(db: Database, term: LeaderTerm, code: str = LacksSecret.MISSING, **fields: Any) -> dict[str, Any]:
    await add_deployment(db, "d", env=ENV, resources={"gpus": 1}, **fields)
    await term.settle()
    await refuse(db, code)
    await term.settle()
    return await instance(db)


@pytest.mark.parametrize("code", list(LacksSecret))
async def test_it_counts_as_no_failure_and_has_a_reason_of_its_own(db: Database, term: LeaderTerm, code: str) -> None:
    found = await lacking(db, term, code)
    assert (found["phase"], found["reason"], found["failures"], found["claims"]) == ("pending", code, 0, 0)
    assert found["message"] == "secret 'hf' does not exist; set it with: gpuward secret set hf"
    assert 0 < found["left_s"] <= 60


async def test_it_starts_as_soon_as_the_secret_is_set(db: Database, term: LeaderTerm) -> None:
    await lacking(db, term)
    await put_secret(db, "hf", "value")
    await term.settle()
    found = await instance(db)
    assert (found["phase"], found["reason"], found["epoch"]) == ("scheduled", "", 2)


async def test_a_wider_scope_mends_it_too(db: Database, term: LeaderTerm) -> None:
    await put_secret(db, "hf", "value", deployments=["team-a-*"])
    await lacking(db, term, LacksSecret.FORBIDDEN)
    await scope_secret(db, "hf", deployments=["d"], admins_only=None)
    await term.settle()
    assert (await instance(db))["phase"] == "scheduled"


async def test_a_secret_that_is_set_while_the_start_is_refused_counts(db: Database, term: LeaderTerm) -> None:
    await add_deployment(db, "d", env=ENV, resources={"gpus": 1})
    await term.settle()
    async with db.transaction() as c:
        row = await c.fetchrow(NEWEST_START)
    await put_secret(db, "hf", "value")
    async with db.transaction() as c:
        await write_answers(c, [Answer(row["id"], str(row["worker_id"]), "refused", LacksSecret.MISSING, "missing")])
    (uid,) = await term.instances.list_keys()
    (outcome,) = (await term.instances.step([uid])).values()
    assert isinstance(outcome, Requeue)
    assert outcome.after_s < 1, "no other hint of the change will come"
    await term.settle()
    assert (await instance(db))["epoch"] == 2


async def test_what_is_still_lacking_is_tried_once_for_each_change(db: Database, term: LeaderTerm) -> None:
    await lacking(db, term)
    await put_secret(db, "other", "value")  # the one of its two secrets that is not the cause
    await term.settle()
    await refuse(db)
    await term.settle()
    found = await instance(db)
    assert (found["phase"], found["reason"], found["epoch"]) == ("pending", LacksSecret.MISSING, 2)
    await put_secret(db, "nothing-to-do-with-it", "value")
    await delete_secret(db, "other")
    await term.settle()
    assert (await instance(db))["epoch"] == 2


async def test_a_restart_in_place_waits_with_its_gpus_and_goes_on_at_once(db: Database, term: LeaderTerm) -> None:
    await add_deployment(db, "d", env=ENV, resources={"gpus": 1})
    await term.settle()
    (row,) = await rows(db, "select id from instances")
    await report(db, row["id"], "running")
    await term.settle()
    await report(db, row["id"], "exited", code=3)
    await term.settle()
    async with db.transaction() as c:
        await c.execute("update instances set not_before = now()")
    await term.settle()
    await refuse(db)
    await term.settle()
    found = await instance(db)
    assert (found["phase"], found["reason"], found["failures"]) == ("backoff", LacksSecret.MISSING, 1)
    assert found["claims"] > 0
    await put_secret(db, "hf", "value")
    await term.settle()
    assert ((await instance(db))["phase"], (await instance(db))["epoch"]) == ("starting", 3)


async def test_setting_a_secret_wakes_the_deployments_that_lack_one(db: Database, term: LeaderTerm) -> None:
    await lacking(db, term)
    (deployment,) = await rows(db, "select uid::text as uid from deployments")
    heard: list[str] = []
    listener = await db.listen_connection()
    await listener.add_listener("gpuward", lambda *args: heard.append(args[3]))
    await put_secret(db, "hf", "value")
    await listener.execute("select 1")
    await listener.close()
    assert f"deployment {deployment['uid']}" in heard


@pytest.mark.parametrize(
    ("reason", "ago_s", "overdue"),
    [("", 21, True), ("", 19, False), ("fetching", 9999, False), ("pulling", 9999, False)],
)
async def test_a_start_that_takes_longer_than_its_timeout_needs_attention(
    db: Database, term: LeaderTerm, reason: str, ago_s: int, overdue: bool
) -> None:
    await add_deployment(db, "d", resources={"gpus": 1}, start_timeout="20s")
    await term.settle()
    (row,) = await rows(db, "select id from instances")
    await report(db, row["id"], "starting")
    await term.settle()
    async with db.transaction() as c:
        await c.execute("update instances set reason = $1", reason)
        await c.execute(
            "update instances set phase_since = now() - make_interval(secs => $1), start_phase_since = null", ago_s
        )
    async with db.snapshot() as c:
        facts = await read_attention(c, leading=True, violations=())
    assert [one.overdue for one in facts.instances] == ([True] if overdue else [])
