"""Why a verb ends early: each type carries the exit code of the contract, its text is all that the user sees."""


class CliError(Exception):
    """Refused or failed. The message says what is wrong and what to do."""

    exit_code = 1


class UsageError(CliError):
    """The command was written wrongly: names the argument and the fix."""

    exit_code = 2


class UnreachableError(CliError):
    """Nobody answers at the address. Passing, so that waits outlive a controller's restart."""


class RefusedError(CliError):
    """The server answered with an error.

    Attributes:
        code: for programs, such as `conflict`.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class NotFoundError(RefusedError):
    """The object does not exist."""

    exit_code = 3


class TimedOutError(CliError):
    """What was waited for did not come in time."""

    exit_code = 4
