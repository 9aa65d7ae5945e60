"""The caller, and sessions of browsers."""

from schemas.api.access import Role
from schemas.api.view import Literal, View

Right = Literal["read", "operate", "administer", "infer", "logs"]


class MeView(View, frozen=True, kw_only=True):
    """The caller.

    Attributes:
        key_id: id of its key.
        name: of its key.
        role: of its key.
        may: what the role may do: `read` all but Access, `operate` deployments and workers, `administer` keys and
            tokens, `infer` (send requests to models), read `logs`.
        session: whether a browser's session was given, not the key itself.
        encrypted: whether the request came through TLS, as far as the server or a trusted proxy says.
        version: of the controller.
    """

    key_id: str
    name: str
    role: Role
    may: list[Right]
    session: bool
    encrypted: bool
    version: str
