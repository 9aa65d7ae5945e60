"""What one instance that shall live does next. Pure: one small function per phase."""

from datetime import timedelta

from controller.decide.backoff import RestartSettings
from controller.decide.draft import Draft
from controller.decide.liveness import host, host_is_dead, is_lost, is_silent, may_run, unsent_start
from controller.decide.ranks import ends_together, has_lost_ranks, refusal, telling
from controller.decide.stopping import reap, stop
from controller.domain.effects import Fact, Restart
from controller.domain.instances import DeploymentFacts, InstanceFacts, ProcessFacts
from controller.domain.phases import LIVE, InstancePhase
from schemas.reasons import Reason

P = InstancePhase
_OF_STATE = {"starting": P.STARTING, "running": P.RUNNING, "unhealthy": P.UNHEALTHY}
# An end that nobody can blame on the model: it starts again at once and no failure is counted.
_BLAMELESS = frozenset({"agent_stopped", "disconnected", "gone"})


def advance(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft, settings: RestartSettings) -> None:
    """Adds to the draft what this instance does next."""
    if instance.phase in LIVE and is_silent(facts, instance):
        if instance.phase is P.BACKOFF and not _any_may_run(facts, instance):
            _leave_worker(instance, draft, "worker_unreachable")
            return
        if not _has_ended(facts, instance):
            name = (h := host(facts, instance)) and h.name
            draft.move(instance, P.UNREACHABLE, "worker_unreachable", f"worker {name} is silent")
            return
    match instance.phase:
        case P.SCHEDULED | P.STARTING | P.RUNNING | P.UNHEALTHY:
            _follow_process(facts, instance, draft, settings)
        case P.BACKOFF:
            _end_backoff(facts, instance, draft, settings)
        case P.UNREACHABLE:
            _look_for_return(facts, instance, draft, settings)
        case P.REPLACED:
            _leave_to_substitute(facts, instance, draft)
        case P.PENDING | P.ANALYZING | P.SUCCEEDED | P.FAILED | P.STOPPING:
            pass  # placement's, final, or `stopping.py`'s


def _leave_to_substitute(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft) -> None:
    if not is_silent(facts, instance) or not _any_may_run(facts, instance):
        stop(facts, instance, draft, "replaced", "its substitute runs elsewhere")
    elif len(instance.ranks) > 1:
        reap(facts, instance, draft)


def _any_may_run(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    return any(may_run(facts, instance, rank) for rank in instance.ranks)


def _has_ended(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether it is known how it ended, or that it was refused, so that its worker's silence is no riddle."""
    process = telling(instance)
    if process is None:  # an agent that ends refuses starts, and is gone the next moment; a lost one is not waited for
        known = refusal(instance) is not None and not is_lost(facts, instance)
    else:
        known = process.state == "exited"
    return known and not _any_may_run(facts, instance)


def _follow_process(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft, settings: RestartSettings) -> None:
    if ends_together(facts, instance, draft):
        return
    process, refused = telling(instance), refusal(instance)
    if process is None:
        if refused is not None:
            _refused(facts, instance, draft, settings, refused.code, refused.message)
        return
    if process.state == "exited":
        after_exit(facts, instance, process, draft, settings)
        return
    phase = _OF_STATE.get(process.state)
    if phase is not None and phase is not instance.phase:
        _step_towards(instance, phase, process, draft)
    if instance.phase is P.RUNNING and phase is P.RUNNING and instance.failures:
        stable_in_s = settings.stable_after_s - (facts.now - instance.phase_since).total_seconds()
        if stable_in_s <= 0:
            draft.facts.append(
                Fact("stable", "runs well again; earlier failures are forgotten", (f"instance:{instance.id}",))
            )
            draft.forget_failures.append(instance.id)
        else:
            draft.again(stable_in_s)


def _step_towards(instance: InstanceFacts, phase: InstancePhase, process: ProcessFacts, draft: Draft) -> None:
    """One legal edge towards what the agent reports; from `scheduled` the way leads through `starting`."""
    if instance.phase is P.SCHEDULED or (instance.phase is P.STARTING and phase is P.UNHEALTHY):
        phase = P.STARTING if instance.phase is P.SCHEDULED else P.RUNNING
        draft.again(0.0)
    if phase is P.STARTING and instance.phase in (P.RUNNING, P.UNHEALTHY):
        return  # a late report of the same epoch; the phases only go forward within one
    reason = "probe_failed" if phase is P.UNHEALTHY else ""
    draft.move(instance, phase, reason, process.message if phase is P.UNHEALTHY else "")


def _refused(
    facts: DeploymentFacts, instance: InstanceFacts, draft: Draft, settings: RestartSettings, code: str, message: str
) -> None:
    failures = instance.failures + 1
    wait = timedelta(seconds=settings.delay_s(failures))
    text = f"the agent refused to start it: {message or code}"
    if instance.phase is P.SCHEDULED:
        draft.move(instance, P.PENDING, code or "refused", text, failures=failures, not_before=facts.now + wait)
        draft.release(instance)
    else:  # a restart in place was refused
        draft.move(instance, P.BACKOFF, code or "refused", text, failures=failures, not_before=facts.now + wait)
    draft.facts.append(Fact("start_refused", text, (f"instance:{instance.id}",), {"code": code}))
    draft.again(wait.total_seconds())


def after_exit(
    facts: DeploymentFacts,
    instance: InstanceFacts,
    process: ProcessFacts,
    draft: Draft,
    settings: RestartSettings,
) -> None:
    """A process ended although it should live: finished, failed, or to be started again."""
    if instance.phase is P.SCHEDULED:  # it came and went between two looks
        draft.move(instance, P.STARTING)
        draft.again(0.0)
        return
    restart = facts.revisions[instance.revision].spec.restart
    reason = process.reason or "exit"
    told = _tell_exit(process)
    objects = (f"instance:{instance.id}", f"worker:{process.worker_id}")
    evidence = {"exit_code": process.exit_code, "reason": reason, "epoch": process.epoch}
    failures = instance.failures + 1
    if process.exit_code == 0 and reason == "exit" and restart != "always":
        draft.move(instance, P.SUCCEEDED, "completed", told)
        draft.release(instance)
        draft.facts.append(Fact("succeeded", told, objects, evidence))
    elif restart == "never" or (
        restart == "on_failure" and reason not in _BLAMELESS and failures > settings.on_failure_retries
    ):
        draft.move(instance, P.FAILED, reason, told, failures=failures)
        draft.release(instance)
        draft.facts.append(Fact("failed", told, objects, evidence))
    elif reason in _BLAMELESS:
        draft.move(instance, P.BACKOFF, reason, told, restarts=instance.restarts + 1, not_before=facts.now)
        draft.facts.append(Fact("ended", told, objects, evidence))
        draft.again(0.0)
    else:
        wait_s = settings.delay_s(failures)
        draft.move(
            instance,
            P.BACKOFF,
            reason,
            f"{told}; starts again after {wait_s:g} s",
            failures=failures,
            restarts=instance.restarts + 1,
            not_before=facts.now + timedelta(seconds=wait_s),
        )
        draft.facts.append(Fact("backoff", told, objects, {**evidence, "failures": failures, "wait_s": wait_s}))
        draft.again(wait_s)


def _tell_exit(process: ProcessFacts) -> str:
    code = process.exit_code
    ended = {
        "spawn_failed": "could not be started",
        "start_timeout": "made no progress within its start timeout and was killed",
        "liveness": "stopped answering its probe and was killed",
        "agent_stopped": "was stopped with its agent",
        "disconnected": "was stopped by its agent, which had lost the controller",
        "gone": "is gone; nobody saw it end",
    }.get(process.reason or "exit")
    if ended is None:
        ended = (
            "ended, exit code unknown"
            if code is None
            else f"was killed by signal {-code}"
            if code < 0
            else f"exited with code {code}"
        )
    return f"{ended}: {process.message}" if process.message else ended


def _end_backoff(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft, settings: RestartSettings) -> None:
    wait_s = (instance.not_before - facts.now).total_seconds() if instance.not_before else 0.0
    if 0 < wait_s <= settings.cap_s:  # longer than the longest: it was set before the clock was set back
        draft.again(wait_s)
        return
    home = host(facts, instance)
    unfit = home is None or home.phase != "ready" or home.draining or not all(c.healthy for c in instance.claims)
    # A restart in place renews the order of one rank; several are placed again as a whole.
    if unfit or len(instance.ranks) > 1 or settings.gives_worker_up(instance.failures):
        _leave_worker(instance, draft, instance.reason)
        return
    draft.restarts.append(Restart(instance.id, instance.phase, instance.epoch))


def _leave_worker(instance: InstanceFacts, draft: Draft, reason: str) -> None:
    draft.move(instance, P.PENDING, reason, "is placed again")
    draft.release(instance)
    draft.wake_placement = True


def _look_for_return(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft, settings: RestartSettings) -> None:
    gang = len(instance.ranks) > 1 or has_lost_ranks(instance)
    if gang and is_lost(facts, instance) and facts.revisions[instance.revision].spec.restart != "never":
        reap(facts, instance, draft)
        _look_for_substitute(facts, instance, draft)
        return
    if has_lost_ranks(instance):
        stop(facts, instance, draft, "rank_lost", "a worker of it was lost, and the others have let go")
        return
    if ends_together(facts, instance, draft):
        return
    if is_silent(facts, instance) and not _has_ended(facts, instance):
        _look_for_substitute(facts, instance, draft)
        return
    process = telling(instance)
    if process is None:
        start = instance.command("start")
        if start is not None and start.state == "refused":
            draft.move(instance, P.SCHEDULED)
            draft.again(0.0)
        else:  # the order is still under way and will be delivered
            draft.move(instance, P.SCHEDULED, "", "its worker is back")
    elif process.state == "exited":
        after_exit(facts, instance, process, draft, settings)
    else:
        draft.move(instance, _OF_STATE.get(process.state, P.RUNNING), "", "its worker is back")


def _look_for_substitute(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft) -> None:
    substitute = next((i for i in facts.instances if i.replaces == instance.id), None)
    if substitute is not None and substitute.claims:
        draft.move(instance, P.REPLACED, "replaced", f"{substitute.id} takes its place")
        return
    deadlines = [
        (h.fence_until - facts.now).total_seconds()
        for rank in instance.ranks
        if (h := host(facts, instance, rank)) is not None and h.fence_until is not None
    ]
    if not _any_may_run(facts, instance):
        spec = facts.revisions[instance.revision].spec
        dead = all(host_is_dead(facts, instance.host_of(rank)) for rank in instance.ranks)
        unsent = [order for rank in instance.ranks if (order := unsent_start(instance, rank)) is not None]
        if spec.restart == "never" and dead and len(unsent) < len(instance.ranks):  # else it has never begun
            draft.move(instance, P.FAILED, "worker_lost", "its worker is lost; a task that never restarts ends here")
            draft.release(instance)
        else:
            stop(facts, instance, draft, Reason.NOT_READY, "its worker is lost and nothing of it can still run")
    elif deadlines:
        draft.again(max(min(deadlines), 0.05))
