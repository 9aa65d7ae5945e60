"""Why a model is not on this host. Shared by the agent and the child that fetches."""

import errno
from typing import Final

from schemas.exit_causes import Cause

# Codes that the child may report. It reads a hub's answers, so it is trusted with no others.
CODES_OF_CHILD: Final = frozenset(
    {Cause.MODEL_NOT_FOUND, Cause.MODEL_GATED, Cause.MODEL_COMMIT_GONE, Cause.NO_DISK_SPACE}
)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class FetchError(Exception):
    """A model is not available on this host."""

    def __init__(self, message: str, *, final: bool = False, code: str = "") -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.final = final  # the hub refuses, so a retry is useless
        self.code = code  # a reason code, which starts the message; or empty


def code_of(error: BaseException | None) -> str:
    """The reason code of an error of the host or of its causes, or empty."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return Cause.NO_DISK_SPACE
        visited.add(id(error))
        error = error.__cause__ or error.__context__
    return ""
