"""Results of analyses, kept for as long as the model's files can be assumed unchanged.

A model is thus read once for all of its deployments, not only for those that are analyzed at the same time.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from controller.engines.base import Analysis
from schemas.hub import is_commit

MAX_KEPT: Final = 1024  # each takes a few KiB
# A folder's content may be replaced before an apply. Checking for that would make the event loop wait for a disk,
# perhaps a network's. Deployments that are applied together arrive within seconds.
FOLDER_FRESH_S: Final = 10.0
BRANCH_FRESH_S: Final = 600.0
NEW_S: Final = 10.0  # a new deployment gets the commit of its branch that was read within this time, at most


class ModelCache:
    """Results by source, the least recently used forgotten first.

    Args:
        monotonic: seconds that never go backwards.
        max_kept: most results that are kept.
    """

    def __init__(self, monotonic: Callable[[], float], max_kept: int = MAX_KEPT) -> None:
        self._monotonic = monotonic
        self._max_kept = max_kept
        self._kept: dict[str, tuple[float, Any]] = {}  # when it was read, and the result

    def find(self, analysis: Analysis, branch_s: float = BRANCH_FRESH_S) -> Any | None:
        """The result of an equal analysis, if it has not expired. `branch_s`: the greatest age of what may move."""
        source = source_of(analysis)
        at, result = self._kept.get(source, (-math.inf, None))
        if self._monotonic() - at >= fresh_for_s(analysis.payload, branch_s):
            return None
        del self._kept[source]
        self._kept[source] = (at, result)  # most recently used
        return result

    def keep(self, analysis: Analysis, result: Any) -> None:
        """Keeps the result of an analysis. Errors are not kept, since the next attempt may succeed."""
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
    what = {"target": analysis.target, "payload": dict(analysis.payload)}
    return hashlib.sha256(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()


def fresh_for_s(source: Mapping[str, Any], branch_s: float = BRANCH_FRESH_S) -> float:
    """Seconds for which a source counts as unchanged: for ever at a commit, 0 where it has no model files."""
    if "repo" in source:
        own = math.inf if is_commit(str(source.get("revision"))) else branch_s
    else:
        own = FOLDER_FRESH_S if "path" in source or "gguf" in source else 0.0
    beside = [*source.get("adapters", ()), *([source["draft"]] if source.get("draft") else [])]
    return min([own, *(fresh_for_s(one, branch_s) for one in beside)])
