"""How many files this process may open, and how many of them connections may take."""

import contextlib
import functools
import resource
from typing import Final

import structlog

log = structlog.get_logger(__name__)

LOW_LIMIT: Final = 4096
_MOST: Final = 1 << 20  # a hard limit may be 2**63; more than this is never needed
_KEPT_BACK: Final = 192  # for the database, agents, engines' logs, the sampler and what else the daemon lives by
_FILES_PER_CONNECTION: Final = 2  # a request that is passed on takes one more, to the agent or the engine


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard one, warns where that is low, and returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; the limit then stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    limit = _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)
    if limit < LOW_LIMIT:
        _warn(limit)
    return limit


@functools.cache  # several daemons in one process log it once
def _warn(limit: int) -> None:
    log.warning(
        "limit of open files is low",
        limit=limit,
        wanted=LOW_LIMIT,
        connections=connection_bound(limit),
        remedy="raise the hard limit: LimitNOFILE= in systemd, --ulimit nofile in Docker, or ulimit -Hn",
    )


def connection_bound(file_limit: int) -> int:
    """How many connections may be open at once, so that files remain for the rest of the process."""
    return max(16, (file_limit - _KEPT_BACK) // _FILES_PER_CONNECTION)
