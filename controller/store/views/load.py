"""The requests that a deployment has at gateways now."""

from typing import Any, Final

from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.scaling.gateways import SILENT_S
from schemas.api.deployments import DeploymentLoad

_QUERY: Final = """
    with fresh as (select id, name, seen_at >= clock_timestamp() - make_interval(secs => $2) as reports from gateways)
    select (select coalesce(sum(m.in_flight), 0)::int from gateway_demand m join fresh on fresh.id = m.gateway_id
             where fresh.reports and m.deployment_uid = d.uid) as in_flight,
           (select coalesce(sum(m.waiting), 0)::int from gateway_demand m join fresh on fresh.id = m.gateway_id
             where fresh.reports and m.deployment_uid = d.uid) as waiting,
           array(select name from fresh where not reports order by name) as silent
      from deployments d
     where d.name = $1 order by d.deleted_at is null desc, d.deleted_at desc limit 1"""


async def load_of(connection: Reader, name: str) -> DeploymentLoad:
    """What the gateways last reported of a deployment, at most a second ago.

    Raises:
        NotFoundError: no deployment has this name.
    """
    rows: list[Any] = await connection.fetch(_QUERY, name, SILENT_S)
    if not rows:
        raise NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists them")
    return view_of(DeploymentLoad, rows[0])
