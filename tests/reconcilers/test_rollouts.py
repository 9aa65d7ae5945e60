"""Rollouts on a real database: stored with each step, safe against users, other leaders and an end at any step."""

from contextlib import suppress
from typing import Any

import pytest

from controller.api.resources.metrics import figures_text
from controller.domain.effects import StaleError
from controller.live.demand import DemandReports, RevisionCount
from controller.live.endpoints import EndpointReader, RolloutRoute
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.store.core.refusals import NotFoundError, NothingToUndoError, NotRollingError
from controller.store.deployments import revisions, rollouts, verbs
from controller.store.views.deployments import deployment_by_name, revisions_of
from controller.store.views.metrics import read_figures
from support.builders.apply import apply_spec
from support.database.ledger import add_host, rows
from support.leading.leader_term import LeaderTerm
from support.leading.rollout_site import ROLLOUT, Site, chat

GPUS = 3


@pytest.fixture
async def site(db: Database, leader_term: LeaderTerm) -> Site:
    await add_host(db, "w1", gpus=GPUS)
    return Site(db, leader_term)


async def up(db: Database, site: Site, **fields: Any) -> None:
    await apply_spec(db, "chat", chat(**fields))
    await site.play(6)
    assert await site.running() == [(1, "running")] * 2
    assert (await site.rollout())["state"] == "complete"


async def test_a_rollout_is_stored_shown_and_complete(db: Database, site: Site) -> None:
    await up(db, site)
    await apply_spec(db, "chat", chat(0.02))
    await site.play(2)
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert view.status.rollout is not None
    assert (view.status.rollout.state, view.status.rollout.stable, view.status.rollout.revision) == (
        "progressing", 1, 2,
    )  # fmt: skip
    await site.play(14)
    assert await site.running() == [(2, "running")] * 2
    assert (await site.rollout())["stable"] == 2
    reasons = [
        r["reason"] for r in await rows(db, "select reason from events where reason like 'rollout%' order by id")
    ]
    assert reasons == ["rollout_started", "rollout_complete"]


async def test_metrics_show_a_rollout_until_it_is_complete(db: Database, site: Site) -> None:
    await up(db, site)
    await rollouts.pause(db, "chat")
    await apply_spec(db, "chat", chat(0.02, rollout={**ROLLOUT, "canary": {"weight": 25, "for": "1h"}}))
    await site.play(2)
    async with db.snapshot() as c:
        text = figures_text(await read_figures(c), leading=True, version="1").decode()
    for name, value in (("available_replicas", 0.0), ("request_ratio", 0.25), ("stands", 1.0)):
        assert f'gpuward_rollout_{name}{{deployment="chat",revision="2"}} {value}' in text
    await apply_spec(db, "chat", chat(0.02))
    await rollouts.resume(db, "chat")
    await site.play(16)
    async with db.snapshot() as c:
        assert (await read_figures(c)).rollouts == {}


async def test_counts_of_all_gateways_abort_a_rollout(db: Database, site: Site) -> None:
    await up(db, site)
    rolling = {**ROLLOUT, "canary": {"weight": 25, "for": "1h"}, "abort": {"after_requests": 10}}
    await apply_spec(db, "chat", chat(0.02, rollout=rolling))
    await site.play(4)
    (uid,) = [r["uid"] for r in await rows(db, "select uid from deployments")]
    attempt = (await site.rollout())["attempt"]
    gateways = [DemandReports(db, name) for name in ("p", "q")]
    for gateway in gateways:
        await gateway.report({}, [RevisionCount(str(uid), 2, attempt - 1, 100, 100)])
    await site.play(2)
    assert (await site.rollout())["state"] == "canary", "counts of an earlier attempt"
    for gateway in gateways:
        await gateway.report({}, [RevisionCount(str(uid), 2, attempt, 8, 1)])
    await site.play(2)
    record = await site.rollout()
    assert (record["state"], record["weight"]) == ("aborted", 0)
    assert "2 of 16 requests to revision 2 failed, more than 5 %" in record["message"]
    async with db.snapshot() as c:
        serving, _ = await EndpointReader().read(c)
    assert serving.models["chat"].rollout == RolloutRoute("2", attempt, 0)
    await site.play(8)
    assert await site.running() == [(1, "running")] * 2


async def test_another_leader_goes_on_and_the_old_one_writes_nothing(db: Database, site: Site) -> None:
    await up(db, site)
    await apply_spec(db, "chat", chat(0.02))
    await site.play(3)
    successor = await LeaderTerm.begin(db)
    for _ in range(18):
        before = await rows(db, "select version from deployments")
        with suppress(StaleError):
            await site.term.step()
        assert before == await rows(db, "select version from deployments")
        await site.play(1, successor)
    assert await site.running() == [(2, "running")] * 2
    assert len(await rows(db, "select 1 from events where reason = 'rollout_complete'")) == 1
    await successor.aclose()


async def test_a_user_who_pauses_between_read_and_write_wins(
    db: Database, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await up(db, site)
    await apply_spec(db, "chat", chat(0.02))
    decide = site.term.instances._decide

    def paused_meanwhile(facts: Any) -> Any:
        monkeypatch.setattr(site.term.instances, "_decide", decide)
        found = decide(facts)
        assert found.effects.rollout is not None
        return found

    monkeypatch.setattr(site.term.instances, "_decide", paused_meanwhile)
    observed = site.term.instances._apply

    async def apply_late(steps: Any) -> Any:
        monkeypatch.setattr(site.term.instances, "_apply", observed)
        await rollouts.pause(db, "chat")
        return await observed(steps)

    monkeypatch.setattr(site.term.instances, "_apply", apply_late)
    with pytest.raises(StaleError):
        await site.term.instances.step(sorted(await site.term.instances.list_keys()))
    await site.play()
    assert await site.running() == [(1, "running")] * 2
    assert (await site.rollout())["reason"] == "rollout_paused"
    await rollouts.resume(db, "chat")
    await site.play(16)
    assert await site.running() == [(2, "running")] * 2


async def test_g55_a_failed_rollout_stands_and_undo_goes_back(db: Database, site: Site) -> None:
    await up(db, site)
    site.bad = {2}
    await apply_spec(db, "chat", chat(0.02, start_timeout="1s"))
    await site.play(4)
    async with db.transaction() as c:
        await c.execute("update rollouts set trying_since = trying_since - interval '1 min'")
    await site.play(4)
    assert (await site.rollout())["state"] == "failed"
    assert await site.running() == [(1, "running")] * 2
    # A replica that is lost comes back with the revision that serves.
    async with db.transaction() as c:
        await c.execute("delete from claims where instance_id = (select min(id) from instances)")
        await c.execute("delete from instances where id = (select min(id) from instances)")
    await site.play(4)
    assert await site.running() == [(1, "running")] * 2
    view = await verbs.undo(db, "chat", None)
    assert (view.status.revision, view.generation) == (1, 3)
    await site.play(4)
    assert (await site.rollout())["state"] == "complete"
    assert [r["generation"] for r in await rows(db, "select generation from revisions order by 1")] == [1, 2]


async def test_the_old_spec_in_mid_rollout_makes_no_third_revision(db: Database, site: Site) -> None:
    await up(db, site)
    await apply_spec(db, "chat", chat(0.02))
    await site.play(3)
    applied = await apply_spec(db, "chat", chat(replicas=2, priority=7))
    assert (applied.view.status.revision, applied.view.spec.priority) == (1, 7)
    await site.play(12)
    assert await site.running() == [(1, "running")] * 2
    await apply_spec(db, "chat", chat(0.02))
    found = await rows(db, "select revision, generation from deployments")
    assert [tuple(r.values()) for r in found] == [(4, 4)], "after the rollout, files may have changed: a new one"


async def test_undo_keeps_what_changes_in_place_and_goes_to_a_named_revision(db: Database, site: Site) -> None:
    await up(db, site)
    for seconds in (0.02, 0.03):
        await apply_spec(db, "chat", chat(seconds))
        await site.play(16)
    await verbs.scale(db, "chat", 3, 3)
    view = await verbs.undo(db, "chat", 1)
    assert (view.status.revision, view.spec.args["load_seconds"], view.spec.replicas) == (1, 0.01, 3)
    with pytest.raises(NothingToUndoError, match="at revision 1 already"):
        await verbs.undo(db, "chat", 1)
    with pytest.raises(NotFoundError, match="has no revision 9"):
        await verbs.undo(db, "chat", 9)
    await site.play(20)
    again = await verbs.undo(db, "chat", None)
    assert again.status.revision == 3


async def test_history_is_bounded_and_names_the_key(db: Database, site: Site) -> None:
    await up(db, site)
    with acting("key:ops", "request-7"):
        for n in range(2, 16):
            await apply_spec(db, "chat", chat(n / 100))
    async with db.connection() as c:
        found = (await revisions_of(c, "chat")).items
    numbers = [one.revision for one in found]
    assert numbers[: revisions.KEPT] == list(range(15, 5, -1))
    assert numbers[revisions.KEPT :] == [1], "it still runs"
    assert (found[0].actor, found[0].request_id, found[0].newest, found[-1].stable) == (
        "key:ops",
        "request-7",
        True,
        True,
    )


async def test_a_pause_needs_update_rolling(db: Database) -> None:
    await apply_spec(db, "chat", chat(update="recreate"))
    with pytest.raises(NotRollingError):
        await rollouts.pause(db, "chat")
    with pytest.raises(NothingToUndoError, match="no revision before 1"):
        await verbs.undo(db, "chat", None)


async def test_back_to_recreate_forgets_the_rollout(db: Database, site: Site) -> None:
    await up(db, site)
    await rollouts.pause(db, "chat")
    await apply_spec(db, "chat", chat(0.02))
    await apply_spec(db, "chat", chat(0.02, update="recreate"))
    await site.play(16)
    assert await rows(db, "select 1 from rollouts") == []
    assert await site.running() == [(2, "running")] * 2


async def test_a_deletion_in_mid_rollout_leaves_nothing(db: Database, site: Site) -> None:
    await up(db, site)
    await apply_spec(db, "chat", chat(0.02))
    await site.play(3)
    await verbs.delete(db, "chat")
    await site.play(6)
    left = """select 1 from instances union all select 1 from claims union all select 1 from rollouts
              union all select 1 from revisions union all select 1 from deployments"""
    assert await rows(db, left) == []


async def test_a_range_of_replicas_rolls_while_an_outdated_instance_stops(db: Database, site: Site) -> None:
    await apply_spec(db, "chat", chat(replicas={"min": 2, "max": 3}, update="recreate"))
    await site.play(6)
    await apply_spec(db, "chat", chat(0.02, replicas={"min": 2, "max": 3}, update="recreate"))
    await site.play(20)
    assert await site.running() == [(2, "running")] * 2
