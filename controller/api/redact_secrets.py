"""Answers without the values of stored secrets, and warnings to those that write such a value into a manifest.

One middleware sees to every whole answer, and what is streamed is redacted as it is encoded: objects in
`live/object_feed.py`, events in `live_socket/topics.py`. A refusal repeats what its caller has sent, and stays as it
is: a guess must not be confirmed to those that may know no secrets. For the same reason the plan of a viewer shows what
the viewer wrote, and the warnings here are for callers that may write deployments.
"""

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from controller.api.context import CONTEXT
from controller.domain.access.redaction import Redaction, Use
from schemas.api.plan import PlanView
from schemas.api.policies import PlannedPolicy
from schemas.base import Strict

AS_WRITTEN: Final = web.RequestKey("AS_WRITTEN", bool)  # the handler has redacted what is not the caller's own
_REFUSED: Final = 400
_INLINE_BYTES: Final = 64 * 1024  # a longer answer would hold up the loop for more than a millisecond
_MOST_WARNINGS: Final = 20


@web.middleware
async def redact_secrets(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Takes the values out of every whole answer of JSON."""
    response = await handler(request)
    redaction = request.app[CONTEXT].known_secrets.redaction()
    if not redaction or response.status >= _REFUSED or AS_WRITTEN in request:
        return response
    if not isinstance(response, web.Response) or response.prepared or response.content_type != "application/json":
        return response
    body = response.body
    if isinstance(body, bytes):
        inline = len(body) <= _INLINE_BYTES
        shown = redaction.shown(body) if inline else await asyncio.to_thread(redaction.shown, body)
        if shown is not body:
            response.body = shown
    return response


def without_stored_values(view: PlanView, redaction: Redaction) -> PlanView:
    """A plan of which all is redacted that its caller has not written: values before, and stored policies."""
    changes = {
        name: [one.model_copy(update={"old": redaction.value(one.old, written=True)}) for one in fields]
        for name, fields in view.field_changes.items()
    }
    policies = {
        name: policy
        if policy.origin == "inline" or policy.name in view.policy_changes
        else PlannedPolicy.model_validate(redaction.value(policy.model_dump(mode="json")))
        for name, policy in view.policies.items()
    }
    return view.model_copy(update={"field_changes": changes, "policies": policies})


def secret_warnings(redaction: Redaction, spec: Strict, name: str = "") -> list[str]:
    """Warns of fields that hold the value of a secret. `name` is the object's, where several are checked."""
    if not redaction:
        return []
    lines = [f"{name}: {_warning(use)}".removeprefix(": ") for use in redaction.uses(spec.model_dump(mode="json"))]
    more = len(lines) - _MOST_WARNINGS
    if more <= 0:
        return lines
    return [*lines[:_MOST_WARNINGS], f"{name}: {more} more fields hold values of secrets".removeprefix(": ")]


def _warning(use: Use) -> str:
    field = use.path.partition(".")[0].partition("[")[0]
    if field == "env":
        fix = "name it instead" if use.whole else "give it a variable of its own"
        return f"{use.path}: {_holds(use)} in plain text; {fix}: {{secret: {use.secret}}}"
    if field in ("args", "command"):
        fix = f"put it into env: {{NAME: {{secret: {use.secret}}}}}"
        return f"{use.path}: {_holds(use)}, and every account of a host can read arguments; {fix}"
    return f"{use.path}: {_holds(use)} in plain text; take it out"


def _holds(use: Use) -> str:
    return f"{'is' if use.whole else 'contains'} the value of secret {use.secret}"
