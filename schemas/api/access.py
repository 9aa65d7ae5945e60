"""Keys and join tokens as the API returns them. What they are worth is shown once, when they are made."""

from datetime import datetime
from typing import Literal

from schemas.base import View

Role = Literal["admin", "operator", "viewer", "inference"]


class KeyView(View):
    """An API key without its secret."""

    id: str
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None = None


class KeyCreated(KeyView):
    """The one answer that holds the key itself."""

    key: str


class TokenView(View):
    """A join token without its secret."""

    id: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    used_by: str | None = None
    revoked_at: datetime | None = None


class TokenCreated(TokenView):
    """The one answer that holds the token itself."""

    token: str
