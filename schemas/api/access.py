"""API keys and join tokens as the API returns them. The secret value is returned once, at creation."""

from typing import TYPE_CHECKING, Final, Literal, get_args

from schemas.api.view import Literal as OpenLiteral
from schemas.api.view import Moment, View

Role = Literal["admin", "operator", "viewer", "inference"]
if TYPE_CHECKING:
    KnownRole = Role
else:
    KnownRole = OpenLiteral[get_args(Role)]
MAX_TOKEN_USES: Final = 1000


class KeyView(View, frozen=True, kw_only=True):
    """An API key, without its value. A limit of null is none; no globs: all models.

    Attributes:
        used_at: when it was used last, to about a minute; null: never.
        rotated_to: id of the key that takes its place; null: none does.
    """

    id: str
    name: str
    role: KnownRole
    created_at: Moment
    revoked_at: Moment | None = None
    expires_at: Moment | None = None
    models: list[str] = []
    rpm: int | None = None
    tpm: int | None = None
    tokens_per_day: int | None = None
    parallel: int | None = None
    used_at: Moment | None = None
    rotated_to: str | None = None


class KeyCreated(KeyView, frozen=True, kw_only=True):
    """The answer to the creation of a key, the only one with its value."""

    key: str


class TokenView(View, frozen=True, kw_only=True):
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
    created_at: Moment
    expires_at: Moment
    used_at: Moment | None = None
    used_by: str | None = None
    uses: int = 0
    max_uses: int = 1
    name: str | None = None
    labels: dict[str, str] = {}
    advertise_networks: list[str] = []
    revoked_at: Moment | None = None


class TokenCreated(TokenView, frozen=True, kw_only=True):
    """The answer to the creation of a token, the only one with its value.

    Where the controller has a certificate authority of its own, the token ends with a dot and the SHA-256 of that
    authority's public key, by which an agent knows the controller.
    """

    token: str


class SecretView(View, frozen=True, kw_only=True):
    """A secret, without its value."""

    name: str
    encrypted: bool
    key_id: str
    readable: bool
    deployments: list[str]
    admins_only: bool
    created_at: Moment
    updated_at: Moment
    used_at: Moment | None = None


class SecretsRotated(View, frozen=True, kw_only=True):
    """What a rotation of the key did.

    Attributes:
        unreadable: secrets that no key of this controller opens.
        waiting_for: gateways that have not reported the new key: the secrets of agents' proxies stay as they are.
    """

    encrypted: int
    key_id: str
    unreadable: list[str]
    waiting_for: list[str] = []
