"""Analyses of revisions' needs: at once where the engine needs no files, else as cancellable computations.

Results are kept for as long as the model's files can be assumed unchanged. So a model is read once for all of its
deployments, not only for those that are analyzed at the same time.
"""

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson
import structlog

from controller.decide.instances.decide import Finished
from controller.domain.instances import Revision
from controller.domain.model_facts import COMMITS
from controller.domain.placement import Need
from controller.engines.base import Analysis
from controller.engines.registry import engine_for
from controller.model_files.concealed import UnreadError, local_path, unread
from controller.model_files.files import GatedModelError
from controller.runtime.child import ChildCrashed, ChildError, ChildFailure, ChildTimeout, run_child
from controller.runtime.clock import Clock
from controller.runtime.computations import Computations
from controller.runtime.metrics import Metrics
from controller.runtime.outcome import RetryableError
from controller.runtime.slots import Work
from schemas.exit_causes import Cause
from schemas.hub import is_commit
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

MAX_KEPT: Final = 1024  # each takes a few KiB
# A folder's content may be replaced before an apply. Checking for that would make the event loop wait for a disk,
# perhaps a network's. Deployments that are applied together arrive within seconds.
FOLDER_FRESH_S: Final = 10.0
BRANCH_FRESH_S: Final = 600.0
NEW_S: Final = 10.0  # a new deployment gets a commit of its branch that was read within this time
PURPOSE = "analysis"
log = structlog.get_logger(__name__)


class ModelCache:
    """Results by source; the least recently used are dropped first."""

    def __init__(self, monotonic: Callable[[], float], max_kept: int = MAX_KEPT) -> None:
        self._monotonic = monotonic
        self._max_kept = max_kept
        self._kept: dict[str, tuple[float, Any]] = {}  # when it was read, and the result

    def find(self, analysis: Analysis, branch_s: float = BRANCH_FRESH_S) -> Any | None:
        """The result of an equal analysis, if it has not expired. `branch_s`: the maximum age of a branch's result."""
        source = source_of(analysis)
        at, result = self._kept.get(source, (-math.inf, None))
        if self._monotonic() - at >= fresh_for_s(analysis.payload, branch_s):
            return None
        del self._kept[source]
        self._kept[source] = (at, result)  # most recently used
        return result

    def keep(self, analysis: Analysis, result: Any) -> None:
        """Keeps a result. Errors must not be kept, since the next attempt may succeed."""
        fresh_s = fresh_for_s(analysis.payload)
        if not fresh_s:
            return
        source = source_of(analysis)
        self._kept.pop(source, None)
        self._kept[source] = (self._monotonic(), result)
        if len(self._kept) > self._max_kept:
            del self._kept[next(iter(self._kept))]


def source_of(analysis: Analysis) -> str:
    """SHA-256 of an analysis's target and payload: equal ones give equal results."""
    source = {"target": analysis.target, "payload": dict(analysis.payload)}
    return hashlib.sha256(orjson.dumps(source, option=orjson.OPT_SORT_KEYS)).hexdigest()


def fresh_for_s(source: Mapping[str, Any], branch_s: float = BRANCH_FRESH_S) -> float:
    """Seconds for which a source counts as unchanged: for ever at a commit, 0 where it has no model files."""
    if "repo" in source:
        own = math.inf if is_commit(str(source.get("revision"))) else branch_s
    else:
        own = FOLDER_FRESH_S if "path" in source or "gguf" in source else 0.0
    others = [*source.get("adapters", ()), *([source["draft"]] if source.get("draft") else [])]
    return min([own, *(fresh_for_s(other, branch_s) for other in others)])


@dataclass(frozen=True, slots=True)
class _Running:
    revision: Revision
    analysis: Analysis
    source: str


class Analyses:
    """A term's analyses: at most one per deployment; results are kept here for the next step.

    Deployments of the same model share its running analysis and, for a while, its result.

    Args:
        clock: time.
        metrics: to count in.
        hint: called with the uid of a deployment whose analysis has ended.
        on_start: called with the uid of a deployment whose analysis starts; its input may be outdated by then.
        loop_lag_s: the event loop's worst recent lag, for the log.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        metrics: Metrics,
        hint: Callable[[str], None],
        on_start: Callable[[str], None] = lambda _uid: None,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._hint = hint
        self._on_start = on_start
        self._computations = Computations(self._done, clock=clock, metrics=metrics, loop_lag_s=loop_lag_s)
        self._known = ModelCache(clock.monotonic)
        self._running: dict[str, _Running] = {}
        self._finished: dict[str, Finished] = {}

    def running(self, uid: str) -> bool:
        return uid in self._running

    def under_way(self, uid: str) -> Revision | None:
        """The revision of this deployment that is being analyzed."""
        running = self._running.get(uid)
        return None if running is None else running.revision

    def uids(self) -> list[str]:
        """Deployments with a running analysis."""
        return list(self._running)

    def finished(self, uid: str) -> Finished | None:
        """The result of the last analysis; kept until `forget` or the next start."""
        return self._finished.get(uid)

    def start(self, uid: str, revision: Revision) -> None:
        """Starts the analysis of the revision unless it is running already."""
        analysis = engine_for(revision.spec).analysis(revision.spec)
        if analysis is None:
            return
        self._finished.pop(uid, None)
        # A later revision may be applied to get the hub's present model.
        known = self._known.find(analysis, NEW_S if revision.generation == 1 else 0.0)
        if known is not None:
            self.cancel(uid, committed_at=None)
            self._finished[uid] = _finish(revision, known)
            self._hint(uid)
            return
        source = source_of(analysis)
        self._running[uid] = _Running(revision, analysis, source)
        self._computations.start(
            uid,
            Work(
                purpose=PURPOSE,
                input_hash=source,
                target=analysis.target,
                payload=analysis.payload,
                deadline_s=analysis.deadline_s,
                memory_bytes=analysis.memory_bytes,
            ),
        )
        self._on_start(uid)

    def cancel(self, uid: str, *, committed_at: datetime | None) -> None:
        """Cancels this deployment's analysis, its child process included, and drops any result."""
        self._finished.pop(uid, None)
        if self._running.pop(uid, None) is not None:
            self._computations.cancel(uid, committed_at=committed_at)

    def forget(self, uid: str) -> None:
        """Drops the result, which is stored now."""
        self._finished.pop(uid, None)

    async def aclose(self) -> None:
        await self._computations.aclose()

    def _done(self, owner: Hashable, source: str, result: Any) -> None:
        uid = str(owner)
        running = self._running.pop(uid, None)
        if running is None or running.source != source:
            return
        if not isinstance(result, BaseException):
            self._known.keep(running.analysis, result)
        self._finished[uid] = _finish(running.revision, _concealed(running.analysis, result))
        self._hint(uid)


def _finish(revision: Revision, result: Any) -> Finished:
    if isinstance(result, Exception) and (need := assumed_need(revision.spec, _text(result))) is not None:
        return Finished(revision.input_hash, need=need)
    if isinstance(result, BaseException):
        retryable = bool(getattr(result, "retryable", isinstance(result, RetryableError)))
        text = _text(result)
        text = text if retryable else f"{text}; then stop and start the deployment"  # a start reads the files again
        gated = isinstance(result, ChildError) and result.type == GatedModelError.__name__
        reason = Cause.MODEL_GATED if gated else Reason.METADATA_UNKNOWN
        return Finished(revision.input_hash, error=text, retryable=retryable, reason=reason)
    need = engine_for(revision.spec).need(revision.spec, result)
    if (unknown := _unknown(need)) is not None:
        return Finished(revision.input_hash, error=unknown, retryable=False)
    return Finished(revision.input_hash, need=need, commits=_commits(revision.spec, result))


def _commits(spec: DeploymentSpec, result: Any) -> dict[str, str]:
    """The commits that were read. A deployment's own hub may have other commits, which its agents report."""
    return {} if "HF_ENDPOINT" in spec.env or not isinstance(result, dict) else dict(result.get(COMMITS, {}))


def _unknown(need: Need) -> str | None:
    """Why the need stays unknown although the files were read; None if it is known."""
    return "; ".join(need.notes) if need.refused == (Reason.METADATA_UNKNOWN,) else None


def _concealed(analysis: Analysis, result: Any) -> Any:
    """The result; of a child that ended without an answer it reveals nothing about this host's disk."""
    if not isinstance(result, ChildTimeout | ChildCrashed):
        return result
    payload = analysis.payload
    sources = (payload, payload.get("draft") or {}, *payload.get("adapters", ()))
    path = next((path for source in sources if (path := local_path(source)) is not None), None)
    if path is None:
        return result
    log.warning("model not read", path=path, error=str(result))
    return ChildError(UnreadError.__name__, unread(path), retryable=True)


def _text(error: BaseException) -> str:
    """An error for users, without the class name."""
    return (error.message if isinstance(error, ChildError) else str(error)) or type(error).__name__


def assumed_need(spec: DeploymentSpec, why: str) -> Need | None:
    """The need of an unread model by its spec, with the error `why` in its notes; None if the spec does not suffice."""
    need = engine_for(spec).assumed(spec)
    return None if need is None else replace(need, notes=(*need.notes, f"the model was not read: {why}"))


async def analyse_now(known: ModelCache, spec: DeploymentSpec) -> Need:
    """The need of a spec, for a waiting caller such as a plan; cancelling it kills the child.

    Raises:
        ChildError: the analysis failed; `retryable`: a later analysis may succeed.
    """
    engine = engine_for(spec)
    analysis = engine.analysis(spec)
    if analysis is None:
        return engine.need(spec, None)
    result = known.find(analysis)
    if result is None:
        try:
            result = await run_child(
                analysis.target, analysis.payload, deadline_s=analysis.deadline_s, memory_bytes=analysis.memory_bytes
            )
        except ChildFailure as error:
            shown = _concealed(analysis, error)
            if (need := assumed_need(spec, _text(shown))) is not None:
                return need
            raise shown from None
        known.keep(analysis, result)
    need = engine.need(spec, result)
    if (unknown := _unknown(need)) is not None:
        raise ChildError("MetadataError", unknown, retryable=False)
    return need


def known_need(revision: Revision) -> Need | None:
    """The need of a revision without a stored need, if it needs no analysis."""
    if revision.need is not None:
        return None
    engine = engine_for(revision.spec)
    return engine.need(revision.spec, None) if engine.analysis(revision.spec) is None else None
