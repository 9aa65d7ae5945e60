"""Errors that end a verb. Each type has its exit code; the user sees only the message."""

from collections.abc import Sequence


class CliError(Exception):
    """Refused or failed. The message states what is wrong and what to do."""

    exit_code = 1


class UsageError(CliError):
    """The command line is invalid. The message names the argument and the fix."""

    exit_code = 2


class UnreachableError(CliError):
    """No controller answers. Waits continue after this error, so they survive a restart of the controller."""


class RefusedError(CliError):
    """The server answered with an error.

    Attributes:
        code: the API's, such as `conflict`.
        problems: path and message of each invalid field of a manifest. The error's message has them, too.
    """

    def __init__(self, message: str, code: str = "", problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.problems = problems


class NotFoundError(RefusedError):
    """The object does not exist."""

    exit_code = 3


class TimedOutError(CliError):
    """A wait timed out."""

    exit_code = 4
