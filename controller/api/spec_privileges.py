"""Judges what a caller may write in a deployment: for apply, plan and dry runs alike.

Administrators may write anything. Operators need a grant for what gives a process power over its host. Viewers, which
may only plan, have no grant. Only a change that makes a new revision is judged, and then the whole new spec: what is
stored continues to run, and may be scaled, stopped and started. Such a change may have no retired args, either.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError, invalid
from controller.domain.access.grants import Grant
from controller.domain.spec_changes import change_between
from controller.engines.arguments.privileges import next_change_needs, powers
from controller.engines.simulated import retired_args
from controller.store.deployments.apply import Judge
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import FieldProblem

SETTING: Final = "GPUWARD_OPERATORS_MAY"
_RETIRED: Final = "has no effect any more; remove it"


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

    A change by a caller that lacks a grant, or with retired args, is refused: this warns of nothing that just changed.
    """
    needs = next_change_needs(spec, granted)
    found = [needs] if needs else []
    found += [f"args.{arg}: {_RETIRED}" for arg in retired_args(spec)]
    return [f"{name}: {one}".removeprefix(": ") for one in found]


def judge(granted: Collection[Grant], name: str, old: DeploymentSpec | None, new: DeploymentSpec) -> None:
    """Allows the change from `old` to `new`, or refuses it.

    Args:
        granted: what the caller may write.
        name: of the deployment.
        old: as stored; None: the deployment is new.
        new: as written.

    Raises:
        ApiError: 403, names each field that needs a grant; 400, names each retired arg.
    """
    if old is not None and change_between(old, new) != "replaced":
        return
    if retired := retired_args(new):
        raise invalid([FieldProblem(f"args.{arg}", f"deployment {name}: {_RETIRED}") for arg in retired])
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
