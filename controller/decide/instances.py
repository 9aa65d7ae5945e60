"""What a deployment's instances do next: how many there shall be, of which revision, and each one's own step. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from controller.decide.backoff import RestartSettings
from controller.decide.draft import Draft
from controller.decide.instance import advance
from controller.decide.liveness import host, is_lost, may_run
from controller.decide.ranks import telling
from controller.decide.relocating import is_on_trial, relocate, why_relocated
from controller.decide.rollup import roll_up
from controller.decide.stopping import stop
from controller.domain.effects import ANALYZING_MESSAGE, Create, DeploymentEffects, Fact, StoreNeed
from controller.domain.instances import DeploymentFacts, InstanceFacts, NeedError, RevisionFacts
from controller.domain.phases import InstancePhase
from controller.domain.placement import Need
from schemas.reasons import Reason

P = InstancePhase
_NO_HOLD = frozenset({P.PENDING, P.ANALYZING, P.SUCCEEDED, P.FAILED})
_GOING = frozenset({P.STOPPING, P.REPLACED})
_MAX_CREATED_AT_ONCE = 2_000  # a step stays short; the next one goes on


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an analysis: a need, or what went wrong."""

    input_hash: str
    need: Need | None = None
    error: str = ""
    retryable: bool = False


def wanted_replicas(facts: DeploymentFacts) -> int:
    """Replicas of the spec, limited by the intents."""
    if facts.deleted_at is not None:
        return 0
    return min([facts.spec.replicas, *(i.max_replicas for i in facts.intents)])


def decide(
    facts: DeploymentFacts, settings: RestartSettings, finished: Finished | None = None, known: Need | None = None
) -> DeploymentEffects:
    """The next step of one deployment.

    Args:
        facts: the deployment as read at one moment.
        settings: back-off and retries.
        finished: an analysis that ended since the last step, if any.
        known: the newest revision's need, where it can be told without an analysis.
    """
    draft = Draft()
    wanted = wanted_replicas(facts)
    for instance in facts.instances:
        if instance.phase is P.STOPPING:
            stop(facts, instance, draft, instance.stop_reason or instance.reason, instance.message)
    leaving = _let_go(facts, wanted, draft)
    staying = [i for i in facts.instances if i.id not in leaving and i.phase is not P.STOPPING]
    for instance in staying:
        advance(facts, instance, draft, settings)
    if facts.deleted_at is None:
        need_known = _settle_need(facts, wanted, finished, known, draft, settings)
        _analyse(facts, staying, wanted, need_known, draft)
        _fill_up(facts, staying, wanted, draft)
        relocate(facts, draft)
        if _opens_the_way(facts, draft):
            draft.again(0.0)
    elif len(draft.removals) == len(facts.instances):
        draft.finish = True
    if need_waits(facts, draft):
        draft.wake_placement = True
    roll_up(facts, wanted, draft)
    return draft.done()


def need_waits(facts: DeploymentFacts, draft: Draft) -> bool:
    """Whether an instance of the newest revision can be placed as soon as this plan is committed."""
    revision = facts.revisions.get(facts.revision)
    has_need = (revision is not None and revision.need is not None) or (
        draft.store_need is not None and draft.store_need.need is not None
    )
    waiting = any(i.phase in (P.PENDING, P.ANALYZING) for i in facts.instances)
    return has_need and (bool(draft.creates) or (draft.store_need is not None and waiting))


def _opens_the_way(facts: DeploymentFacts, draft: Draft) -> bool:
    """Whether this step lets the next one replace or give up another instance; nobody else would hint at that."""
    replacing = any(i.revision != facts.revision for i in facts.instances)
    returned = any(m.expected is P.UNREACHABLE for m in draft.moves)
    return returned or (replacing and bool(draft.moves or draft.removals))


def _let_go(facts: DeploymentFacts, wanted: int, draft: Draft) -> set[str]:
    """Stops what shall no longer be: all of a deleted deployment, drained, outdated and surplus instances."""
    leaving: set[str] = set()

    def let_go(instance: InstanceFacts, reason: str, message: str) -> None:
        leaving.add(instance.id)
        stop(facts, instance, draft, reason, message)

    here = [i for i in facts.instances if i.phase is not P.STOPPING]
    if facts.deleted_at is not None:
        for instance in here:
            let_go(instance, "deleted", "the deployment was deleted")
        return leaving
    for instance in here:
        if instance.phase not in _GOING and (why := _sent_away(facts, instance)) is not None:
            let_go(instance, *why)
    _let_outdated_go(facts, [i for i in here if i.id not in leaving], let_go)
    count = [i for i in here if i.id not in leaving and _counts(facts, i)]
    stop_reason = next((i.reason for i in facts.intents if i.max_replicas <= wanted and i.reason), "scaled_down")
    named = {id_ for i in facts.intents for id_ in i.instances}
    for instance in sorted(count, key=lambda i: (i.id not in named, *_worth(i)))[: max(len(count) - wanted, 0)]:
        let_go(instance, stop_reason if wanted < facts.spec.replicas else "scaled_down", "")
    if wanted == 0:
        for instance in here:
            if instance.id not in leaving and instance.phase is P.UNREACHABLE:
                let_go(instance, stop_reason, "")
    return leaving


def _sent_away(facts: DeploymentFacts, instance: InstanceFacts) -> tuple[str, str] | None:
    """Why it has to leave its place, though it is wanted: reason and message."""
    homes = [host(facts, instance, rank) for rank in instance.ranks]
    if not _is_over(facts, instance):
        if any(h is not None and h.draining for h in homes):
            return "drained", "its worker is drained"
        if instance.pushed_out_for is not None:
            return "preempted", f"makes room for {instance.pushed_out_for}, whose priority is higher"
    return why_relocated(facts, instance)


def _is_over(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether it is a task that has come to its end by itself, so that nobody need do it again elsewhere."""
    if instance.phase in (P.SUCCEEDED, P.FAILED):
        return True
    restart, process = facts.revisions[instance.revision].spec.restart, telling(instance)
    if restart == "always" or process is None or process.state != "exited" or process.reason not in (None, "exit"):
        return False
    ended = not any(may_run(facts, instance, rank) for rank in instance.ranks)
    return ended and (process.exit_code == 0 or restart == "never")


def _let_outdated_go(
    facts: DeploymentFacts, here: list[InstanceFacts], let_go: Callable[[InstanceFacts, str, str], None]
) -> None:
    """`update: recreate`: one live instance at a time makes room for its successor; what holds nothing goes at once."""
    outdated = [i for i in here if i.revision != facts.revision and i.phase not in _GOING]
    for instance in outdated:
        if instance.phase in _NO_HOLD or instance.phase in (P.BACKOFF, P.UNHEALTHY):
            let_go(instance, "new_revision", "its spec was changed")
    serving = [i for i in outdated if i.phase not in _NO_HOLD and i.phase not in (P.BACKOFF, P.UNHEALTHY)]
    in_transition = any(_is_awaited(facts, i) for i in facts.instances)
    missing = len([i for i in here if i.revision == facts.revision]) + len(outdated) < wanted_replicas(facts)
    if serving and not in_transition and not missing:
        first = min(serving, key=lambda i: (i.phase is P.RUNNING, i.created_at, i.id))
        let_go(first, "new_revision", "its spec was changed")


def _is_awaited(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether the next replacement waits for it: an old one that stops, a new one that is to run."""
    if instance.phase is P.REPLACED or _given_up(facts, instance):
        return False
    settled = (P.RUNNING, P.SUCCEEDED, P.UNREACHABLE)
    return instance.phase is P.STOPPING or (instance.revision == facts.revision and instance.phase not in settled)


def _given_up(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether its worker is lost, so that nobody waits for it. A task may still work there, and never runs twice."""
    return is_lost(facts, instance) and facts.revisions[instance.revision].spec.restart != "never"


def _counts(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether it fills one of the wanted places. One given up with its worker does not; its substitute does."""
    if instance.phase in _GOING or is_on_trial(facts, instance):
        return False
    return not (instance.phase is P.UNREACHABLE and _given_up(facts, instance))


def _worth(instance: InstanceFacts) -> tuple[int, float]:
    """Order in which instances are given up: what holds nothing first, then what does not run, then the youngest."""
    rank = {P.PENDING: 0, P.ANALYZING: 0, P.FAILED: 1, P.BACKOFF: 2, P.SCHEDULED: 3, P.UNREACHABLE: 3, P.STARTING: 4}
    return (rank.get(instance.phase, 9), -instance.created_at.timestamp())


def _settle_need(
    facts: DeploymentFacts,
    wanted: int,
    finished: Finished | None,
    known: Need | None,
    draft: Draft,
    settings: RestartSettings,
) -> bool:
    """Keeps what became known of the newest revision's need; True where the need is known now."""
    revision = facts.revisions[facts.revision]
    if revision.need is not None:
        return True
    if known is not None:
        draft.store_need = StoreNeed(revision.generation, known, None)
        return True
    if finished is None or finished.input_hash != revision.input_hash:
        if wanted == 0 and revision.need_error is not None:  # who starts it again may have mended the files
            draft.store_need = StoreNeed(revision.generation, None, None)
        return False
    if finished.need is not None:
        draft.store_need = StoreNeed(revision.generation, finished.need, None)
        draft.facts.append(Fact("analyzed", "its need is known", (), {"memory_mib": finished.need.memory_mib}))
        return True
    attempts = (revision.need_error.attempts if revision.need_error else 0) + 1
    wait = timedelta(seconds=settings.delay_s(attempts))
    error = NeedError(finished.error, finished.retryable, attempts, facts.now + wait if finished.retryable else None)
    draft.store_need = StoreNeed(revision.generation, None, error)
    evidence = {"attempts": attempts, "retryable": finished.retryable}
    draft.facts.append(Fact(Reason.METADATA_UNKNOWN, finished.error, (), evidence))
    return False


def _analyse(facts: DeploymentFacts, staying: list[InstanceFacts], wanted: int, need_known: bool, draft: Draft) -> None:
    """Moves waiting instances along while their need is worked out, and says whether the work shall go on."""
    revision = facts.revisions[facts.revision]
    waiting = [i for i in staying if i.phase in (P.PENDING, P.ANALYZING) and i.revision == facts.revision]
    error = draft.store_need.error if draft.store_need else revision.need_error
    if need_known or (not waiting and not draft.creates and wanted == 0):
        return
    if error is not None and not error.retryable:
        for instance in waiting:
            draft.move(instance, P.FAILED, Reason.METADATA_UNKNOWN, error.message)
        return
    if error is not None and error.retry_at is not None and error.retry_at > facts.now:
        for instance in waiting:
            if instance.phase is P.ANALYZING:
                draft.move(instance, P.PENDING, Reason.METADATA_UNKNOWN, error.message)
        draft.again((error.retry_at - facts.now).total_seconds())
        return
    draft.analyse = facts.revision
    for instance in waiting:
        if instance.phase is P.PENDING:
            draft.move(instance, P.ANALYZING, "", ANALYZING_MESSAGE)


def _fill_up(facts: DeploymentFacts, staying: list[InstanceFacts], wanted: int, draft: Draft) -> None:
    """Creates what is missing; while an instance is being replaced in place by revision, its stop comes first."""
    counted = [i for i in staying if _counts(facts, i)]
    gone = {r.instance for r in draft.removals}
    leaving = [
        i for i in facts.instances
        if i.phase is P.STOPPING and i.stop_reason == "new_revision" and i.id not in gone and not _given_up(facts, i)
    ]  # fmt: skip
    about_to = [m for m in draft.moves if m.stop_reason == "new_revision"]
    missing = wanted - len(counted) - len(leaving) - len(about_to)
    given_up = [
        i for i in staying
        if i.phase is P.UNREACHABLE and not _counts(facts, i) and not any(s.replaces == i.id for s in facts.instances)
    ]  # fmt: skip
    pushed_out = [
        i for i in facts.instances
        if i.pushed_out_for is not None and not _is_over(facts, i)
        and not any(s.replaces == i.id for s in facts.instances)
    ]  # fmt: skip
    # Who was pushed out queues again with the age that it had.
    before = [(i.id, i.created_at) for i in pushed_out] + [(i.id, None) for i in given_up]
    for n in range(min(max(missing, 0), _MAX_CREATED_AT_ONCE)):
        replaces, born = before[n] if n < len(before) else (None, None)
        draft.creates.append(Create(facts.revision, replaces, analyzing=draft.analyse is not None, born=born))
    if missing > _MAX_CREATED_AT_ONCE:
        draft.again(0.0)


def current_revision(facts: DeploymentFacts) -> RevisionFacts:
    """The newest revision, which new instances run."""
    return facts.revisions[facts.revision]
