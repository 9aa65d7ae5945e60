"""Which deployments may use a secret, and on which word."""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final


class LacksSecret(StrEnum):
    """Why a start is refused before it is sent. Another place does not help: only a change of the secret does."""

    MISSING = "secret_missing"
    FORBIDDEN = "secret_forbidden"
    UNREADABLE = "secret_unreadable"


SECRET_REFUSALS: Final = tuple(LacksSecret)


@dataclass(frozen=True, slots=True)
class SecretScope:
    """What a secret is for.

    Attributes:
        deployments: globs of names; none: all.
        admins_only: only an administrator may write it into a deployment.
    """

    deployments: tuple[str, ...] = ()
    admins_only: bool = False

    def covers(self, deployment: str) -> bool:
        """Whether the processes of this deployment may have it."""
        return not self.deployments or any(fnmatchcase(deployment, glob) for glob in self.deployments)

    def refusal(self, secret: str, deployment: str, role: str) -> str:
        """Why a deployment may not be written with it, and what to do; empty: it may.

        `role`: of the key that writes it; empty: Gpuward itself does.
        """
        if not self.covers(deployment):
            globs = " ".join(self.deployments)
            return (
                f"secret {secret!r} is for deployments named {globs}; use another secret, or widen it: "
                f"gpuward secret scope {secret} --for {deployment}"
            )
        return self.refusal_of_role(secret, role)

    def refusal_for_all(self, secret: str, role: str) -> str:
        """As `refusal`, of what concerns any deployment, such as the default policy."""
        if self.deployments and "*" not in self.deployments:
            globs = " ".join(self.deployments)
            return (
                f"secret {secret!r} is for deployments named {globs}, and this may be about any; use another secret, "
                f"or widen it: gpuward secret scope {secret} --for all"
            )
        return self.refusal_of_role(secret, role)

    def refusal_of_role(self, secret: str, role: str) -> str:
        """As `refusal`, of what concerns no deployment yet."""
        if self.admins_only and role not in ("", "admin"):
            return f"secret {secret!r} is for administrators; apply with a key of role admin, or use another secret"
        return ""


ALL_DEPLOYMENTS: Final = SecretScope()


def missing_secret(name: str) -> str:
    """What is wrong where a secret does not exist, and what to do."""
    return f"secret {name!r} does not exist; set it with: gpuward secret set {name}"
