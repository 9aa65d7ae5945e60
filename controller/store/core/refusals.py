"""Refusals of the store that a user can mend: each message names the fix."""


class RefusedError(Exception):
    """What was asked for cannot be done as things stand. Nothing was written."""

    code = "refused"


class NotFoundError(RefusedError):
    """No such object."""

    code = "not_found"


class GenerationConflictError(RefusedError):
    """The object is no longer the one that the caller read."""

    code = "generation_conflict"

    def __init__(self, name: str, *, wanted: int, found: int | None, kind: str = "deployment") -> None:
        if found is None:
            message = f"{kind} {name!r} does not exist, so no generation {wanted} of it; apply without If-Match"
        else:
            message = f"{kind} {name!r} is at generation {found}, not {wanted}; read it again and repeat"
        super().__init__(message)
        self.found = found


class InUseError(RefusedError):
    """Something that still runs stands against it."""

    code = "in_use"


class TokenRefusedError(RefusedError):
    """A join token that is unknown, used, revoked or expired; which of them is not told to strangers."""

    code = "token_refused"


class WorkerNameTakenError(RefusedError):
    """A live worker of that name exists."""

    code = "name_taken"
