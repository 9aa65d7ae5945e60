"""Refusals that a user can correct: each message has what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.access.grants import Power


@dataclass(frozen=True, slots=True)
class Changed:
    """An object that is at another generation than expected; 0: it does not exist."""

    kind: str
    name: str
    expected: int
    found: int

    @property
    def text(self) -> str:
        """The difference, as a part of a sentence."""
        if not self.found:
            return f"{self.kind} {self.name!r} does not exist any more"
        if not self.expected:
            return f"{self.kind} {self.name!r} exists already"
        return f"{self.kind} {self.name!r} is at generation {self.found}, not {self.expected}"


RETIRED: Final = "has no effect any more; remove it"


class RefusedError(Exception):
    """The request is not possible in the present state. Nothing was written."""

    code = "refused"


class NotFoundError(RefusedError):
    """No object has this name or id."""


class GenerationConflictError(RefusedError):
    """The object has changed since the caller read it.

    Args:
        name: the object's name.
        wanted: the generation that the caller expects; 0 in an apply: the object must not exist.
        present: the present generation; None if the object does not exist.
        kind: the object's kind, as messages name it.
        applied: whether the request would have created the object.
    """

    def __init__(
        self, name: str, *, wanted: int, present: int | None, kind: str = "deployment", applied: bool = False
    ) -> None:
        if applied and wanted == 0:
            message = f"{kind} {name!r} exists already, at generation {present}; read it and repeat"
        elif present is None:
            message = f"{kind} {name!r} does not exist, so it has no generation {wanted}; apply without If-Match"
        else:
            message = f"{kind} {name!r} is at generation {present}, not {wanted}; read it again and repeat"
        super().__init__(message)
        self.present = present


class ChangedMeanwhileError(RefusedError):
    """Some of several objects are at other generations than the caller expects."""

    def __init__(self, changed: Sequence[Changed]) -> None:
        super().__init__(f"nothing was applied, since {'; '.join(c.text for c in changed)}; plan again and repeat")
        self.changed = changed


class NotGrantedError(RefusedError):
    """The caller may not write fields that give a process power over its host."""

    def __init__(self, name: str, powers: Sequence[Power]) -> None:
        setting = "GPUWARD_OPERATORS_MAY=" + ",".join(dict.fromkeys(power.grant for power in powers))
        super().__init__(
            f"deployment {name}: {'; '.join(f'{power.path} {power.why}' for power in powers)}; "
            f"use a key of role admin, or of role operator with {setting} on the controller"
        )
        self.problems = [{"path": power.path, "message": f"{power.why}; needs {power.grant}"} for power in powers]


class RetiredArgsError(RefusedError):
    """A new or changed spec has args that earlier versions knew, and that have no effect any more."""

    def __init__(self, name: str, args: Sequence[str]) -> None:
        super().__init__(f"deployment {name}: {', '.join(f'args.{arg}' for arg in args)}: {RETIRED}")
        self.problems = [{"path": f"args.{arg}", "message": f"deployment {name}: {RETIRED}"} for arg in args]


class InUseError(RefusedError):
    """The object is still in use."""


class NotScaledError(RefusedError):
    """The deployment does not sleep, so it cannot be woken."""


class NotRollingError(RefusedError):
    """The deployment has `update: recreate`, whose rollouts cannot be paused."""


class NothingToUndoError(RefusedError):
    """There is no other revision to go back to."""


class NothingToRestartError(RefusedError):
    """The deployment runs nothing."""


class LastAdminKeyError(RefusedError):
    """Without this key there would be no administrator."""


class TokenRefusedError(RefusedError):
    """A join token that is unknown, used up, revoked or expired; the answer does not say which."""

    code = "token_refused"


class WorkerNameTakenError(RefusedError):
    """A live worker has this name."""

    code = "name_taken"


class CredentialTakenError(RefusedError):
    """The credential that an agent has chosen is or was another worker's."""

    code = "credential_taken"


class AlreadyRotatedError(RefusedError):
    """The key has a successor."""


class NoSecretsKeyError(RefusedError):
    """The controller has no key to encrypt secrets with."""
