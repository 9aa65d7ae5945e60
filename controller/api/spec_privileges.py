"""Judges what a caller may write in a deployment: for apply, plan and dry runs alike.

Administrators may write anything. Operators need a grant for what gives a process power over its host. Viewers, which
may only plan, have no grant. Only a change that makes a new revision is judged, and then the whole new spec: what is
stored goes on running, and may be scaled, stopped and started.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError
from controller.domain.grants import Grant
from controller.domain.spec_changes import change_between
from controller.engines.arguments.privileges import next_change_needs, powers
from controller.store.deployments.apply import Judge
from schemas.manifest.deployment import DeploymentSpec

SETTING: Final = "GPUWARD_OPERATORS_MAY"


def granted_to(request: web.Request) -> frozenset[Grant]:
    """What this request's caller may write beside what each may."""
    role = request[PRINCIPAL].role
    if role == "admin":
        return frozenset(Grant)
    return frozenset() if role == "viewer" else request.app[CONTEXT].operators_may


def judge_for(request: web.Request) -> Judge:
    """The check of this request's caller: called with a name, the stored spec if there is one, and the new spec."""
    return partial(judge, granted_to(request))


def grant_warnings(granted: Collection[Grant], spec: DeploymentSpec, name: str = "") -> list[str]:
    """Warns of what the caller may repeat as it is stored, and not change. `name` is the deployment's, among several.

    A change by a caller that lacks a grant is refused, so that this warns of nothing that was just changed.
    """
    needs = next_change_needs(spec, granted)
    return [f"{name}: {needs}".removeprefix(": ")] if needs else []


def judge(granted: Collection[Grant], name: str, old: DeploymentSpec | None, new: DeploymentSpec) -> None:
    """Allows the change from `old` to `new`, or refuses it.

    Args:
        granted: what the caller may write.
        name: of the deployment.
        old: as stored; None: the deployment is new.
        new: as written.

    Raises:
        ApiError: 403, names each field that needs a grant.
    """
    if old is not None and change_between(old, new) != "replaced":
        return
    missing = [power for power in powers(new) if power.grant not in granted]
    if not missing:
        return
    fields = "; ".join(f"{power.path} {power.why}" for power in missing)
    setting = f"{SETTING}=" + ",".join(dict.fromkeys(power.grant for power in missing))
    raise ApiError(
        403,
        "forbidden",
        f"deployment {name}: {fields}; use a key of role admin, or of role operator with {setting} on the controller",
        details={"problems": [{"path": one.path, "message": f"{one.why}; needs {one.grant}"} for one in missing]},
    )
