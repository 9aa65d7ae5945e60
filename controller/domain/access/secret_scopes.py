"""Which deployments may use a secret, and who may write it into one."""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final


class LacksSecret(StrEnum):
    """Why a start is refused before it is sent. Only a change of the secret helps; another worker does not."""

    MISSING = "secret_missing"
    FORBIDDEN = "secret_forbidden"
    UNREADABLE = "secret_unreadable"


SECRET_REFUSALS: Final = tuple(LacksSecret)


@dataclass(frozen=True, slots=True)
class SecretScope:
    """The deployments that may use a secret."""

    deployments: tuple[str, ...] = ()  # globs of names; empty: all
    admins_only: bool = False  # only an administrator may write it into a deployment

    def covers(self, deployment: str) -> bool:
        return not self.deployments or any(fnmatchcase(deployment, glob) for glob in self.deployments)

    def refusal(self, secret: str, deployment: str, role: str) -> str:
        """Why a deployment may not name the secret, and the fix; empty if it may.

        `role`: of the key that writes it; empty: Gpuward writes it.
        """
        if not self.covers(deployment):
            globs = " ".join(self.deployments)
            return (
                f"secret {secret!r} is for deployments named {globs}; use another secret, or widen it: "
                f"gpuward secret scope {secret} --for {deployment}"
            )
        return self.refusal_of_role(secret, role)

    def refusal_for_all(self, secret: str, role: str) -> str:
        """Like `refusal`, for objects that apply to any deployment, such as the default policy."""
        if self.deployments and "*" not in self.deployments:
            globs = " ".join(self.deployments)
            return (
                f"secret {secret!r} is for deployments named {globs}, and this may be about any; use another secret, "
                f"or widen it: gpuward secret scope {secret} --for all"
            )
        return self.refusal_of_role(secret, role)

    def refusal_of_role(self, secret: str, role: str) -> str:
        """Like `refusal`, for objects that apply to no deployment yet."""
        if self.admins_only and role not in ("", "admin"):
            return f"secret {secret!r} is for administrators; apply with a key of role admin, or use another secret"
        return ""


ALL_DEPLOYMENTS: Final = SecretScope()


def missing_secret(name: str) -> str:
    return f"secret {name!r} does not exist; set it with: gpuward secret set {name}"
