"""Why a model is not on this host. The child that fetches and the agent share it."""

import errno
from typing import Final

from schemas.exit_causes import Cause

# Codes that the child may report. It has read what a hub answers, so its word counts for no others.
CODES_OF_CHILD: Final = frozenset(
    {Cause.MODEL_NOT_FOUND, Cause.MODEL_GATED, Cause.MODEL_COMMIT_GONE, Cause.NO_DISK_SPACE}
)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class FetchError(Exception):
    """A model is not on this host; the message says why."""

    def __init__(self, message: str, *, final: bool = False, code: str = "") -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.final = final  # the hub was asked, and trying again does not help
        self.code = code  # a reason code, with which the message begins; empty: none


def code_of(error: BaseException | None) -> str:
    """The reason code of an error of the host, or of one that led to it; empty: none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return Cause.NO_DISK_SPACE
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return ""
