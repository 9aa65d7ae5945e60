"""API keys and join tokens as the API returns them. The secret value is returned once, at creation."""

from datetime import datetime
from typing import Final, Literal

from schemas.base import View

Role = Literal["admin", "operator", "viewer", "inference"]
MAX_TOKEN_USES: Final = 1000


class KeyView(View):
    """An API key, without its value. A limit of null is none; no globs: all models.

    Attributes:
        used_at: when it was used last, to about a minute; null: never.
        rotated_to: id of the key that takes its place; null: none does.
    """

    id: str
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    models: list[str] = []
    rpm: int | None = None
    tpm: int | None = None
    tokens_per_day: int | None = None
    parallel: int | None = None
    used_at: datetime | None = None
    rotated_to: str | None = None


class KeyCreated(KeyView):
    """The answer to the creation of a key, the only one with its value."""

    key: str


class TokenView(View):
    """A join token, without its value.

    Attributes:
        used_at: when a host last joined with it.
        used_by: name of that host.
        uses: hosts that have joined with it.
        max_uses: hosts that may.
        name: the only name that a host may join with; null: any.
        labels: trusted labels of the workers that join with it.
        advertise_networks: within which they may advertise another address than they connect from.
    """

    id: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    used_by: str | None = None
    uses: int = 0
    max_uses: int = 1
    name: str | None = None
    labels: dict[str, str] = {}
    advertise_networks: list[str] = []
    revoked_at: datetime | None = None


class TokenCreated(TokenView):
    """The answer to the creation of a token, the only one with its value.

    Where the controller has a certificate authority of its own, the token ends with a dot and the SHA-256 of that
    authority's public key, by which an agent knows the controller.
    """

    token: str


class SecretView(View):
    """A secret, without its value."""

    name: str
    encrypted: bool
    key_id: str
    readable: bool
    deployments: list[str]
    admins_only: bool
    created_at: datetime
    updated_at: datetime
    used_at: datetime | None = None


class SecretsRotated(View):
    """What a rotation of the key did.

    Attributes:
        unreadable: secrets that no key of this controller opens.
        waiting_for: gateways that have not reported the new key: the secrets of agents' proxies stay as they are.
    """

    encrypted: int
    key_id: str
    unreadable: list[str]
    waiting_for: list[str] = []
