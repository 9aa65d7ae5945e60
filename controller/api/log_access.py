"""Who may read logs. Engines print requests, paths and what they like, so viewers may only where a setting says so."""

from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError
from controller.api.route import Access
from schemas.api.access import Role


def may_read_logs(role: Role, *, viewers: bool) -> bool:
    """Whether a role may, where viewers may or may not."""
    return Access.OPERATE.allows(role) or (viewers and Access.READ.allows(role))


def check_log_access(request: web.Request) -> None:
    """Refuses a caller that may not read logs.

    Raises:
        ApiError: 403.
    """
    role = request[PRINCIPAL].role
    if not may_read_logs(role, viewers=request.app[CONTEXT].viewers_read_logs):
        fix = "use a key with one of: admin, operator; or let viewers read logs: GPUWARD_VIEWERS_READ_LOGS=true"
        raise ApiError(403, "forbidden", f"role {role} may not read logs here; {fix}")
