"""Whenever replicas are removed, none that serves goes while one that does not serve stays."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.instances import InstanceState, Intent
from controller.domain.phases import HOLDS_CLAIMS, InstancePhase
from controller.domain.rollouts import RolloutRecord, RolloutSnapshot, RolloutState
from support.builders.facts import host, instance, intent, process, spec
from support.decisions import effects_of
from support.profiles import examples

P = InstancePhase
_PHASES = ["pending", "analyzing", "scheduled", "starting", "running", "unhealthy", "backoff", "unreachable", "failed"]
_STATES = [RolloutState.PROGRESSING, RolloutState.CANARY, RolloutState.FAILED, RolloutState.ABORTED]
_REPORTS = {"running": "running", "unhealthy": "unhealthy", "unreachable": "running", "backoff": "exited"}
_REPLICA = st.tuples(
    st.sampled_from([*_PHASES, "running", "running", "running"]), st.integers(1, 2), st.integers(0, 3),
    st.integers(0, 90), st.booleans(),
)  # fmt: skip


def _instance(number: int, drawn: tuple[str, int, int, int, bool]) -> InstanceState:
    phase, revision, requests, age_s, _ = drawn
    name = f"i{number}"
    processes = (process(_REPORTS[phase]),) if phase in _REPORTS else ()
    one = instance(name, phase, age_s=age_s, revision=revision, requests=requests, processes=processes)
    if phase == "unreachable":
        one = replace(one, claims=tuple(replace(c, worker_id="w2") for c in one.claims))
    return one


@given(
    drawn=st.lists(_REPLICA, min_size=1, max_size=8), wanted=st.integers(0, 8), cap=st.none() | st.integers(0, 8),
    by=st.sampled_from(["user", "policy", "autoscaler"]), update=st.sampled_from(["rolling", "recreate"]),
    state=st.sampled_from(_STATES), newest=st.sampled_from([1, 2]), paused=st.booleans(),
    bounds=st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any),
)  # fmt: skip
@examples(600)
def test_none_that_serves_goes_while_one_that_does_not_stays(
    *, drawn: list[tuple[str, int, int, int, bool]], wanted: int, cap: int | None, by: str, update: str,
    state: RolloutState, newest: int, paused: bool, bounds: tuple[int, int],
) -> None:  # fmt: skip
    some = [_instance(number, one if newest == 2 else (one[0], 1, *one[2:])) for number, one in enumerate(drawn)]
    named = tuple(one.id for one, (*_, is_named) in zip(some, drawn, strict=True) if is_named)
    limits = () if cap is None else (Intent(by, cap, "limited", named, cap if by == "autoscaler" else 0),)
    bounded = {"surge": bounds[0], "unavailable": bounds[1], "canary": {"weight": 30, "for": 60}}
    replicas: object = {"min": 0, "max": 8} if by == "autoscaler" else wanted
    given_spec = spec(replicas=replicas, update=update, rollout=bounded)
    stored = RolloutRecord(newest, 1, state=state if newest == 2 else RolloutState.COMPLETE)
    effects = effects_of(
        *some, spec=given_spec, revision=newest, intents=limits, hosts=(host(), host("w2", phase="unreachable")),
        rollout=RolloutSnapshot(stored, paused=paused) if update == "rolling" else None,
    )  # fmt: skip
    reasons = {change.instance: change.stop_reason for change in effects.phase_changes if change.to is P.STOPPING}
    reasons |= {one.instance: "new_revision" for one in effects.removals}  # these held nothing
    gone = [one for one in some if reasons.get(one.id) and one.phase is P.RUNNING]
    stays = [one for one in some if one.id not in reasons and one.phase is not P.RUNNING]
    for one in gone:
        if reasons[one.id] != "new_revision":
            assert not stays, f"{one.id} serves and goes: {reasons}"
        else:  # of the others, one that starts takes its place
            outdated = [i for i in stays if i.revision == one.revision and i.phase in HOLDS_CLAIMS]
            assert not outdated, f"{one.id} serves and goes: {reasons}"


@given(drawn=st.lists(_REPLICA, min_size=2, max_size=8), number=st.integers(0, 8))
@examples(200)
def test_a_stop_by_a_user_leaves_as_many_that_serve_as_there_can_be(
    drawn: list[tuple[str, int, int, int, bool]], number: int
) -> None:
    some = [_instance(n, (one[0], 1, *one[2:])) for n, one in enumerate(drawn)]
    effects = effects_of(
        *some, spec=spec(replicas=8), intents=(intent(max_replicas=number),),
        hosts=(host(), host("w2", phase="unreachable")),
    )  # fmt: skip
    gone = {c.instance for c in effects.phase_changes if c.to is P.STOPPING} | {r.instance for r in effects.removals}
    serving = sum(one.phase is P.RUNNING for one in some)
    left = sum(one.phase is P.RUNNING and one.id not in gone for one in some)
    assert left == min(serving, number)
