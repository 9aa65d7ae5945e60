"""The judgement of one moment of a rollout, and the numbers that follow from it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.rollouts.judge import RolloutView, judge
from controller.decide.rollouts.plan import plan_of
from controller.decide.rollouts.texts import blocked_text, canary_size, planned_text
from controller.domain.rollouts import RequestOutcomes, RolloutRecord, RolloutSnapshot, RolloutState
from schemas.manifest.rollout import Rollout
from support.builders.facts import NOW, spec

S = RolloutState
PLAIN = Rollout()
CANARY = Rollout.model_validate({"canary": {"weight": 10, "for": 60}})
ABORT = Rollout.model_validate({"abort": {"error_ratio": 0.5, "after_requests": 10}})
BOTH = Rollout.model_validate(
    {"canary": {"weight": 10, "for": 60}, "abort": {"error_ratio": 0.5, "after_requests": 10}}
)
GOES_ON = RolloutRecord(2, 1, kept=4)
TESTED = replace(GOES_ON, state=S.CANARY, canary_since=NOW - timedelta(seconds=20))


def view(
    record: RolloutRecord | None = GOES_ON,
    settings: Rollout = PLAIN,
    *,
    paused: bool = False,
    asked: int = 0,
    outcomes: RequestOutcomes = RequestOutcomes(),  # noqa: B008
    **fields: Any,
) -> RolloutView:
    """Four wanted replicas of which none is new."""
    base = RolloutView(2, settings, 30.0, 4, NOW, RolloutSnapshot(record, paused, asked, outcomes), 1, holding=4)
    return replace(base, **{"outdated": 4, "outdated_ready": 4, **fields})


@pytest.mark.parametrize(
    ("at", "next_check_s"),
    [
        (view(), None),
        (view(trying=1), 90),
        (view(replace(GOES_ON, trying_since=NOW - timedelta(seconds=40)), trying=1), 50),
        (view(replace(GOES_ON, trying_since=NOW - timedelta(seconds=90)), trying=1), 3),
        (view(replace(GOES_ON, trying_since=NOW - timedelta(seconds=40)), trying=1, paused=True), None),
        (view(RolloutRecord(2, None, kept=4), trying=1), None),  # without an older revision it never fails
        (view(settings=ABORT), 1),
        (view(settings=ABORT, wanted=0, updated=1), 1),  # a replica that still runs may fail requests
        (view(settings=ABORT, wanted=0), None),
        (view(RolloutRecord(2, None, kept=4), settings=ABORT), None),
        (view(TESTED, CANARY, updated=1, available=1), 40),
        (view(TESTED, CANARY, updated=1, available=1, paused=True), None),
        (view(TESTED, BOTH, updated=1, available=1), 1),
        (view(replace(TESTED, canary_since=NOW - timedelta(seconds=59.99)), CANARY, updated=1, available=1), 0.1),
        (view(replace(GOES_ON, state=S.FAILED), ABORT), None),
        (view(replace(GOES_ON, state=S.COMPLETE, stable=2), ABORT), None),
    ],
)
def test_a_rollout_is_looked_at_when_time_or_requests_may_change_it(
    at: RolloutView, next_check_s: float | None
) -> None:
    assert judge(at).next_check_s == next_check_s


@pytest.mark.parametrize(
    ("at", "state", "attempt", "seen"),
    [
        (view(None), S.PROGRESSING, 1, 0),
        (view(None, CANARY), S.CANARY, 1, 0),
        (view(None, CANARY, serving=None), S.PROGRESSING, 1, 0),  # nothing to compare it to
        (view(RolloutRecord(1, 1, S.COMPLETE, attempt=3), CANARY), S.CANARY, 4, 0),
        (view(replace(GOES_ON, state=S.FAILED)), S.FAILED, 1, 0),
        (view(replace(GOES_ON, state=S.FAILED), asked=1), S.PROGRESSING, 2, 1),
        (view(replace(GOES_ON, state=S.FAILED), CANARY, asked=1), S.CANARY, 2, 1),
        (view(replace(GOES_ON, state=S.FAILED), asked=1, paused=True), S.FAILED, 1, 1),
        (view(asked=1), S.PROGRESSING, 1, 1),
        (view(replace(GOES_ON, state=S.COMPLETE, stable=2), asked=1), S.COMPLETE, 1, 1),
    ],
)
def test_a_rollout_begins_with_a_revision_or_a_users_retry(
    at: RolloutView, state: RolloutState, attempt: int, seen: int
) -> None:
    made = judge(at)
    assert (made.record.state, made.record.attempt, made.record.seen) == (state, attempt, seen)
    begins = at.snapshot.record is None or attempt != at.snapshot.record.attempt
    started = [one.reason for one in made.events if one.reason == "rollout_started"]
    assert bool(started) == (begins and at.serving is not None)


def test_a_new_rollout_falls_back_to_what_ran_completely_or_else_to_what_serves() -> None:
    assert judge(view(RolloutRecord(7, 5), serving=6)).record.stable == 5
    assert judge(view(RolloutRecord(7, None), serving=6)).record.stable == 6
    assert judge(view(None, serving=None)).record.stable is None


@pytest.mark.parametrize(
    ("requests", "errors", "settings", "state"),
    [
        (10, 6, ABORT, S.ABORTED),
        (10, 5, ABORT, S.PROGRESSING),  # not more than the ratio
        (9, 9, ABORT, S.PROGRESSING),
        (10, 10, PLAIN, S.PROGRESSING),
    ],
)
def test_errors_above_the_ratio_abort(requests: int, errors: int, settings: Rollout, state: RolloutState) -> None:
    outcomes = RequestOutcomes(requests, errors)
    made = judge(view(settings=settings, outcomes=outcomes, paused=True))
    assert made.record.state is state
    if state is S.ABORTED:
        (event,) = made.events
        assert (event.reason, event.evidence["requests"], event.evidence["errors"]) == ("rollout_aborted", 10, 6)
        assert "6 of 10 requests to revision 2 failed, more than 50 %" in event.message
    assert judge(view(RolloutRecord(2, 2), settings, outcomes=outcomes)).record.state is not S.ABORTED


@pytest.mark.parametrize(
    ("tried_s", "fields", "state"),
    [
        (90, {"failing": True}, S.FAILED),
        (89, {"failing": True}, S.PROGRESSING),
        (90, {}, S.PROGRESSING),
        (0, {"hopeless": "no such model"}, S.FAILED),
        (90, {"failing": True, "paused": True}, S.PROGRESSING),
        (0, {"hopeless": "no such model", "paused": True}, S.PROGRESSING),
    ],
)
def test_a_rollout_fails_after_three_start_timeouts(tried_s: int, fields: dict[str, Any], state: RolloutState) -> None:
    record = replace(GOES_ON, trying_since=NOW - timedelta(seconds=tried_s))
    made = judge(view(record, trying=1, trouble="it crashed", **fields)).record
    assert made.state is state
    if state is S.FAILED:
        assert ("no such model" if "hopeless" in fields else "not ready within 90 s: it crashed") in made.message
        assert made.trying_since is None
    alone = replace(record, stable=None)
    assert judge(view(alone, trying=1, **fields)).record.state is S.PROGRESSING


@pytest.mark.parametrize(
    ("record", "fields", "since_s"),
    [
        (GOES_ON, {"trying": 1}, 0),
        (GOES_ON, {}, None),
        (replace(GOES_ON, trying_since=NOW - timedelta(seconds=9)), {"trying": 1}, 9),
        (replace(GOES_ON, trying_since=NOW - timedelta(seconds=9)), {"trying": 1, "available": 1}, 0),  # progress
        (replace(GOES_ON, trying_since=NOW - timedelta(seconds=9), progressed=1), {"trying": 1, "available": 1}, 9),
        (replace(GOES_ON, trying_since=NOW - timedelta(seconds=9)), {"trying": 0}, None),
        (replace(GOES_ON, trying_since=NOW - timedelta(seconds=9)), {"trying": 1, "paused": True}, None),
        (replace(GOES_ON, state=S.FAILED, trying_since=NOW), {"trying": 1}, None),
    ],
)
def test_it_tries_since_its_last_progress(record: RolloutRecord, fields: dict[str, Any], since_s: int | None) -> None:
    made = judge(view(record, **fields)).record
    assert made.trying_since == (None if since_s is None else NOW - timedelta(seconds=since_s))
    assert made.progressed == max(record.progressed, fields.get("available", 0))


@pytest.mark.parametrize(
    ("record", "fields", "since_s", "state"),
    [
        (replace(TESTED, canary_since=None), {"available": 1}, 0, S.CANARY),
        (replace(TESTED, canary_since=None), {}, None, S.CANARY),
        (TESTED, {"available": 1}, 20, S.CANARY),
        (TESTED, {}, None, S.CANARY),  # its replica is gone
        (replace(TESTED, canary_since=NOW - timedelta(seconds=60)), {"available": 1}, None, S.PROGRESSING),
        (replace(TESTED, canary_since=NOW - timedelta(seconds=60)), {"available": 1, "paused": True}, 60, S.CANARY),
        (TESTED, {"available": 1, "settings": PLAIN}, None, S.PROGRESSING),  # the manifest has no canary any more
    ],
)
def test_a_canary_lasts_its_time(
    record: RolloutRecord, fields: dict[str, Any], since_s: int | None, state: RolloutState
) -> None:
    made = judge(view(record, fields.pop("settings", CANARY), updated=1, **fields))
    assert made.record.state is state
    assert made.record.canary_since == (None if since_s is None else NOW - timedelta(seconds=since_s))
    assert ("rollout_promoted" in {one.reason for one in made.events}) == (state is S.PROGRESSING)


def test_a_canary_whose_errors_are_judged_awaits_every_gateway() -> None:
    proven, silent = replace(TESTED, canary_since=NOW - timedelta(seconds=60)), RequestOutcomes(silent=("g",))
    made = judge(view(proven, BOTH, updated=1, available=1, outcomes=silent)).record
    assert made.state is S.CANARY
    assert "gateway g does not report" in made.message
    assert judge(view(proven, BOTH, updated=1, available=1)).record.state is S.PROGRESSING
    assert judge(view(proven, CANARY, updated=1, available=1, outcomes=silent)).record.state is S.PROGRESSING
    assert "does not report" not in judge(view(TESTED, CANARY, available=1, outcomes=silent)).record.message


def test_a_large_canary_begins_when_all_of_it_is_available() -> None:
    half = Rollout.model_validate({"canary": {"weight": 50, "for": 60}})
    waits = replace(TESTED, canary_since=None)
    assert judge(view(waits, half, updated=2, available=1)).record.canary_since is None
    assert "waits for 2 replicas of revision 2" in judge(view(waits, half, updated=2, available=1)).record.message
    assert judge(view(waits, half, updated=2, available=2)).record.canary_since == NOW
    assert "waits for 1 replica of revision 2" in judge(view(waits, CANARY, updated=1)).record.message


@pytest.mark.parametrize(
    ("fields", "complete"),
    [
        ({}, True),
        ({"outdated": 1}, False),
        ({"available": 3, "updated": 3}, False),
        ({"updated": 5}, False),  # one is on its way
        ({"updated": 5, "unplaced": 1}, True),  # growth that finds no place
        ({"wanted": 0, "updated": 0, "available": 0}, False),
        ({"paused": True}, True),
    ],
)
def test_it_is_complete_once_all_that_have_a_place_are_available(fields: dict[str, Any], complete: bool) -> None:
    fields = {"outdated": 0, "outdated_ready": 0, "updated": 4, "available": 4, **fields}
    made = judge(view(replace(GOES_ON, progressed=3, weight=40), **fields))
    assert (made.record.state is S.COMPLETE) == complete
    if complete:
        assert (made.record.stable, made.record.progressed, made.record.trying_since) == (2, 0, None)
        assert (made.record.holds, made.record.weight, made.record.reason) == (False, None, "")
        assert [one.reason for one in made.events] == ["rollout_complete"]
        places = "4 of 4 replicas run revision 2; the others find no place"
        assert made.record.message == (places if fields["updated"] > 4 else "all replicas run revision 2")


@pytest.mark.parametrize(
    ("record", "settings", "fields", "weight", "holds"),
    [
        (GOES_ON, PLAIN, {}, None, False),
        (GOES_ON, PLAIN, {"paused": True}, None, True),
        (RolloutRecord(2, None, kept=4), PLAIN, {"paused": True}, None, False),
        (TESTED, CANARY, {"available": 1}, 10, True),
        (GOES_ON, CANARY, {}, 10, False),
        (GOES_ON, CANARY, {"available": 1, "updated": 1, "outdated_ready": 3}, 25, False),
        (replace(GOES_ON, weight=40), CANARY, {"available": 1, "updated": 1, "outdated_ready": 3}, 40, False),
        (GOES_ON, CANARY, {"available": 1, "updated": 1, "outdated": 1, "outdated_ready": 0}, 100, False),
        (GOES_ON, CANARY, {"outdated": 1, "outdated_ready": 0}, 10, False),
        (replace(GOES_ON, weight=40, state=S.FAILED), CANARY, {}, 40, True),
        (replace(GOES_ON, weight=40, state=S.FAILED), CANARY, {"available": 3, "updated": 3}, 40, True),
        (replace(GOES_ON, weight=40, state=S.ABORTED), CANARY, {}, 0, True),
        (replace(GOES_ON, weight=40, state=S.ABORTED), CANARY, {"outdated_ready": 3}, None, True),
        (replace(GOES_ON, weight=40, state=S.ABORTED), Rollout(unavailable=1), {"outdated_ready": 3}, 0, True),
        (replace(GOES_ON, state=S.ABORTED), Rollout(unavailable=9), {"outdated_ready": 0}, None, True),
    ],
)
def test_the_share_of_the_requests(
    record: RolloutRecord, settings: Rollout, fields: dict[str, Any], weight: int | None, holds: bool
) -> None:
    made = judge(view(record, settings, **fields)).record
    assert (made.weight, made.holds) == (weight, holds)


BLOCKING = {"updated": 1, "unplaced": 1, "holders": ((1, "a"), (1, "b"), (1, "c"), (1, "d"))}


@pytest.mark.parametrize(
    ("fields", "enough"),
    [
        ({}, 1),
        ({"stopping": 1}, None),
        ({"coming": 1}, None),
        ({"unplaced": 0}, None),
        ({"holders": ()}, None),
        ({"outdated_ready": 3}, None),  # one of them does not serve, and goes
        ({"settings": Rollout(unavailable=1)}, None),
        ({"available": 1, "outdated_ready": 3, "holders": ((1, "a"), (1, "b"), (1, "c"))}, 1),
        ({"available": 2}, None),
    ],
)
def test_a_rollout_is_blocked_where_no_place_becomes_free(fields: dict[str, Any], enough: int | None) -> None:
    made = judge(view(settings=fields.pop("settings", PLAIN), **{**BLOCKING, **fields})).record
    assert (made.reason == "rollout_blocked") == (enough is not None)
    if enough is not None:
        assert f"`rollout.unavailable: {enough}`" in made.message


@pytest.mark.parametrize(
    ("holders", "text"),
    [
        (((1, "a"),), "no place: a of revision 1 holds its place"),
        (((1, "a"), (1, "b"), (1, "c")), "no place: a, b, c of revision 1 hold their places"),
        (((1, "a"), (1, "b"), (1, "c"), (2, "d")), "no place: a, b, c and 1 more hold their places"),
    ],
)
def test_a_blocked_rollout_names_the_holders(holders: tuple[tuple[int, str], ...], text: str) -> None:
    assert text in blocked_text(holders, 1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"update": "recreate"}, "a new revision: each old instance stops"),
        ({"replicas": 0}, "none is wanted now"),
        ({"rollout": {"surge": 2, "unavailable": 1}}, "at most 6 instances, at least 3 available"),
        ({"rollout": {"unavailable": 9}}, "at least 0 available"),
        ({"rollout": {"canary": {"weight": 30, "for": 60}}}, "first 2 of 4 with 30 % of the requests for 60 s"),
    ],
)
def test_a_plan_in_words(fields: dict[str, Any], text: str) -> None:
    given = spec(**{"replicas": 4, "update": "rolling", **fields})
    planned = planned_text(given, fields.get("replicas", 4), back_to=None, paused=False)
    assert text in planned
    assert "paused" not in planned
    assert ("is paused" in planned_text(given, 4, back_to=3, paused=True)) == (given.update == "rolling")
    assert planned_text(given, 4, back_to=3, paused=False).startswith("revision 3 again")


@pytest.mark.parametrize(
    ("wanted", "weight", "size"), [(4, 10, 1), (4, 25, 1), (4, 26, 2), (4, 99, 4), (0, 50, 0), (10, 10, 1)]
)
def test_a_canary_has_its_share_of_the_replicas_rounded_up(wanted: int, weight: int, size: int) -> None:
    assert canary_size(wanted, weight) == size


@pytest.mark.parametrize(
    ("record", "fields", "numbers"),
    [  # target, fill, most_new, keep_old, least, unplaced
        (GOES_ON, {}, (2, 2, 4, 0, 4, 0)),
        (GOES_ON, {"unplaced": 2, "stopping": 1}, (2, 2, 4, 0, 4, 1)),
        (GOES_ON, {"unplaced": 2, "coming": 1}, (2, 2, 4, 0, 4, 1)),
        (GOES_ON, {"unplaced": 1, "wanted": 6}, (2, 2, 6, 0, 4, 1)),  # growth is not missed
        (GOES_ON, {"wanted": 6}, (2, 2, 6, 0, 6, 0)),
        (GOES_ON, {"paused": True, "updated": 1}, (2, 1, 1, 3, 4, 0)),
        (RolloutRecord(2, None, kept=4), {"paused": True, "updated": 0}, (2, 2, 1, 3, 4, 0)),
        (replace(GOES_ON, state=S.COMPLETE, stable=2), {"paused": True}, (2, 2, 4, 0, 4, 0)),
        (replace(GOES_ON, state=S.FAILED), {}, (2, 1, 1, 3, 4, 0)),
        (replace(GOES_ON, state=S.FAILED), {"wanted": 0}, (2, 1, 1, 0, 0, 0)),
        (replace(GOES_ON, state=S.ABORTED), {"others_unplaced": 2, "coming": 1}, (1, 1, 4, 0, 4, 2)),
        (TESTED, {}, (2, 1, 1, 4, 4, 0)),
        (TESTED, {"unplaced": 1, "updated": 1, "holders": BLOCKING["holders"]}, (2, 1, 1, 3, 4, 1)),
        (TESTED, {"unplaced": 1, "updated": 1, "stopping": 1, "holders": BLOCKING["holders"][1:]}, (2, 1, 1, 3, 4, 0)),
    ],
)
def test_the_numbers_of_the_plan(
    record: RolloutRecord, fields: dict[str, Any], numbers: tuple[int, int, int, int, int, int]
) -> None:
    at = view(record, CANARY if record.state is S.CANARY else PLAIN, **fields)
    plan = plan_of(at, record, running=1, others=3)
    assert (plan.target, plan.fill, plan.most_new, plan.keep_old, plan.least, plan.unplaced) == numbers
    assert (plan.wanted, plan.surge, plan.ready_for_s) == (at.wanted, 1, 10)
    assert plan.keeps_unready == (record.state is not S.FAILED)
    assert plan.makes_room == (record.state is S.CANARY and at.unplaced > 0)
