"""Results of analyses, kept for as long as the model's files can be assumed unchanged.

A model is thus read once for all of its deployments, not only for those that are analyzed at the same time.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from controller.engines.base import Analysis

MAX_KEPT: Final = 1024  # each takes a few KiB
# A folder's content may be replaced before an apply. Checking for that would make the event loop wait for a disk,
# perhaps a network's. Deployments that are applied together arrive within seconds.
FOLDER_FRESH_S: Final = 10.0
BRANCH_FRESH_S: Final = 600.0
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class ModelCache:
    """Results by source, the least recently used forgotten first.

    Args:
        monotonic: seconds that never go backwards.
        max_kept: most results that are kept.
    """

    def __init__(self, monotonic: Callable[[], float], max_kept: int = MAX_KEPT) -> None:
        self._monotonic = monotonic
        self._max_kept = max_kept
        self._kept: dict[str, tuple[float, Any]] = {}  # expiry and result

    def find(self, analysis: Analysis) -> Any | None:
        """The result of an equal analysis, if it has not expired."""
        source = source_of(analysis)
        until, result = self._kept.pop(source, (-math.inf, None))
        if until <= self._monotonic():
            return None
        self._kept[source] = (until, result)  # most recently used
        return result

    def keep(self, analysis: Analysis, result: Any) -> None:
        """Keeps the result of an analysis. Errors are not kept, since the next attempt may succeed."""
        fresh_s = fresh_for_s(analysis.payload)
        if not fresh_s:
            return
        source = source_of(analysis)
        self._kept.pop(source, None)
        self._kept[source] = (self._monotonic() + fresh_s, result)
        if len(self._kept) > self._max_kept:
            del self._kept[next(iter(self._kept))]


def source_of(analysis: Analysis) -> str:
    """SHA-256 of an analysis's target and payload: equal ones give equal results."""
    what = {"target": analysis.target, "payload": dict(analysis.payload)}
    return hashlib.sha256(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()


def fresh_for_s(source: Mapping[str, Any]) -> float:
    """Seconds for which a source counts as unchanged: for ever at a commit, 0 where it has no model files."""
    if "repo" in source:
        own = math.inf if _COMMIT.fullmatch(str(source.get("revision"))) else BRANCH_FRESH_S
    else:
        own = FOLDER_FRESH_S if "path" in source or "gguf" in source else 0.0
    return min([own, *(fresh_for_s(adapter) for adapter in source.get("adapters", ()))])
