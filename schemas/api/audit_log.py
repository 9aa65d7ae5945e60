"""The audit log as the API returns it."""

from datetime import datetime

from schemas.base import View


class AuditLogEntry(View):
    """One change, or one read of a secret or a log.

    Attributes:
        actor: `key:NAME` or `agent:NAME`; `host`: a command on the controller's host; empty: unknown.
        key_id: of the API key; empty: none.
        address: of the client.
        action: method and route; or `secret.read`, `backup`, `restore`, `key.reset`, `key.first`.
        object: the path below `/api/v1/`; or `secrets/NAME/INSTANCE`, `instances/NAME/logs`, `backups/TIME`.
        outcome: `done`; `refused`: 4xx; `failed`: 5xx; `cut`: the client left before the answer.
        status: of HTTP; 0: no request.
        code: of the error; empty: none.
        request_id: stands in the events of the same request, too.
        left_out: attempts before it that came to nothing, or reads of logs, which have no entry of their own.
    """

    id: int
    at: datetime
    actor: str
    key_id: str = ""
    address: str = ""
    action: str
    object: str = ""
    outcome: str
    status: int = 0
    code: str = ""
    request_id: str = ""
    left_out: int = 0
