"""Which callers may read logs, and the lines that messages quote of them: viewers may where a setting says so.

Engines print requests, paths and what they like.
"""

from aiohttp import web
from aiohttp.typedefs import Handler

from controller.api.audit_trail import note_log_read
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError
from controller.api.route import Access
from controller.domain.access.quoted_lines import shown_json
from schemas.api.access import Role


def may_read_logs(role: Role, *, viewers: bool) -> bool:
    """Whether a role may, where viewers may or may not."""
    return Access.OPERATE.allows(role) or (viewers and Access.READ.allows(role))


def as_shown(request: web.Request, body: bytes) -> bytes:
    """JSON as this caller gets it: without the lines of logs that it quotes, where the caller may read none."""
    principal = request.get(PRINCIPAL)
    viewers = request.app[CONTEXT].viewers_read_logs
    return shown_json(body, logs=principal is not None and may_read_logs(principal.role, viewers=viewers))


@web.middleware
async def withhold_quoted_lines(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Sees to every whole answer, so that no route must think of it. Streams do it with each message."""
    response = await handler(request)
    if isinstance(response, web.Response) and not response.prepared and isinstance(response.body, bytes):
        shown = as_shown(request, response.body)
        if shown is not response.body:
            response.body = shown
    return response


def check_log_access(request: web.Request, object_: str) -> None:
    """Refuses a caller that may not read this log, such as `deployments/chat/logs`, and notes that.

    Raises:
        ApiError: 403.
    """
    role = request[PRINCIPAL].role
    if not may_read_logs(role, viewers=request.app[CONTEXT].viewers_read_logs):
        note_log_read(request, object_, refused=True)
        fix = "use a key with one of: admin, operator; or let viewers read logs: GPUWARD_VIEWERS_READ_LOGS=true"
        raise ApiError(403, "forbidden", f"role {role} may not read logs here; {fix}")
