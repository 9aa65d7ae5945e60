"""Instances as the API shows them, with their claims and workers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from controller.domain.placement import Layout, Need, need_from_json, need_view
from controller.store.access.proxy_secrets import (
    JOIN_PROXY_SECRET,
    PROXY_SECRET,
    StoredProxySecret,
    stored_proxy_secret,
)
from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.deployments.specs import spec_from_json
from controller.store.views.paging import in_batches, open_cursor, page_of
from controller.store.views.verdicts import verdicts_of
from schemas.api.envelopes import Page
from schemas.api.explain import Explain
from schemas.api.instances import ClaimView, InstanceSpecView, InstanceStatus, InstanceView
from schemas.api.needs import LayoutView, NeedView
from schemas.api.policies import InstanceUtilization
from schemas.api.view import from_plain
from schemas.manifest.resources import Resources

_INSTANCES: Final = """
    select i.*, i.id as name, i.id as uid, i.revision as generation, d.name as deployment, r.spec, r.need,
           (select p.image_digest from processes p
             where p.instance_id = i.id and p.epoch = i.epoch and p.image_digest is not null
             order by p.rank limit 1) as image_digest,
           case when i.phase = 'pending' then
               (select o.message from rollouts o
                 where o.deployment_uid = i.deployment_uid and o.revision = i.revision
                   and o.reason = 'rollout_blocked') end as held
      from instances i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision"""
_CLAIMS: Final = """
    select c.device, c.instance_id, c.epoch, c.rank, c.memory_mib, c.exclusive, d.kind, w.name as worker,
           d.health, d.health_reason
      from claims c join devices d on d.uuid = c.device join workers w on w.id = d.worker_id
     where c.instance_id = any($1)
     order by c.rank, d.kind, c.position, c.device"""


@dataclass(frozen=True, slots=True)
class LogSource:
    """The proxy of a worker's agent, which serves the logs of its instances and its cache."""

    worker: str
    phase: str
    address: str  # HOST:PORT
    secret: StoredProxySecret
    certificate: str = ""  # SHA-256 of the proxy's certificate, in hexadecimal digits; empty: no TLS


def log_source_of(row: Any) -> LogSource:
    """`row` has a worker's columns."""
    return LogSource(
        row["name"], row["phase"], row["proxy_address"], stored_proxy_secret(row), row["proxy_certificate"]
    )


async def list_instances(
    connection: Reader,
    *,
    limit: int,
    cursor: str | None = None,
    deployment: str | None = None,
    worker: str | None = None,
) -> Page[InstanceView]:
    """One page by id. Raises BadCursorError if the cursor was not issued for this list."""
    after = open_cursor(cursor, (str,)) or [""]
    query = f"""{_INSTANCES}
        where i.id > $1 and ($2::text is null or d.name = $2)
          and ($3::text is null or exists (
              select 1 from claims c join devices v on v.uuid = c.device join workers w on w.id = v.worker_id
               where c.instance_id = i.id and w.name = $3))
        order by i.id limit $4"""  # noqa: S608 - a constant, no input
    rows = await connection.fetch(query, *after, deployment, worker, limit + 1)
    return page_of(await _with_claims(connection, rows), limit, lambda view: (view.name,))


async def instances_of(connection: Reader, uids: Iterable[str] | None = None) -> list[InstanceView]:
    """The instances of the deployments with these uids; None: all instances."""
    if uids is None:
        rows = await connection.fetch(f"{_INSTANCES} order by i.id")
    else:
        rows = await connection.fetch(f"{_INSTANCES} where i.deployment_uid = any($1::uuid[])", list(uids))
    return await in_batches(rows, partial(_with_claims, connection))


async def instance_by_id(connection: Reader, instance: str) -> InstanceView:
    """Raises NotFoundError if no instance has this id."""
    views = await _with_claims(connection, await connection.fetch(f"{_INSTANCES} where i.id = $1", instance))
    if not views:
        raise NotFoundError(f"no instance is named {instance!r}; `gpuward ps` lists them")
    return views[0]


async def log_source(connection: Reader, instance: str, rank: int = 0) -> LogSource | None:
    """The worker of this rank's newest start; None if it never ran. Raises NotFoundError if no instance has this id."""
    rows = await connection.fetch(
        f"""select w.name, w.phase, w.proxy_address, {PROXY_SECRET}, w.proxy_certificate
             from instances i
             left join lateral (
                 select p.worker_id, p.epoch, 0 as claimed from processes p where p.instance_id = i.id and p.rank = $2
                 union all
                 select d.worker_id, c.epoch, 1 from claims c join devices d on d.uuid = c.device
                  where c.instance_id = i.id and c.rank = $2
                 order by epoch desc, claimed limit 1) at on true
             left join workers w on w.id = at.worker_id {JOIN_PROXY_SECRET}
            where i.id = $1""",  # noqa: S608 - constants
        instance,
        rank,
    )
    if not rows:
        raise NotFoundError(f"no instance is named {instance!r}; `gpuward ps` lists them")
    row = rows[0]
    return log_source_of(row) if row["name"] else None


async def cache_source(connection: Reader, worker: str) -> LogSource:
    """Raises NotFoundError if no worker has this name."""
    rows = await connection.fetch(
        f"select w.name, w.phase, w.proxy_address, {PROXY_SECRET}, w.proxy_certificate"  # noqa: S608 - constants
        f" from workers w {JOIN_PROXY_SECRET} where w.name = $1 and w.deleted_at is null",
        worker,
    )
    if not rows:
        raise NotFoundError(f"no worker is named {worker!r}; `gpuward get workers` lists them")
    return log_source_of(rows[0])


async def _with_claims(connection: Reader, rows: Sequence[Any]) -> list[InstanceView]:
    ids = [row["id"] for row in rows]
    claims: dict[str, list[ClaimView]] = defaultdict(list)
    for row in await connection.fetch(_CLAIMS, ids) if ids else ():
        claims[row["instance_id"]].append(view_of(ClaimView, row))
    verdicts = await verdicts_of(connection, ids)
    needs: dict[tuple[Any, int], Need] = {}  # many replicas share a revision
    for row in rows:
        key = row["deployment_uid"], row["revision"]
        if row["need"] is not None and key not in needs:
            needs[key] = need_from_json(row["need"])
    return [
        _view(row, claims[row["id"]], needs.get((row["deployment_uid"], row["revision"])), verdicts.get(row["id"]))
        for row in rows
    ]


def _need(
    need: Need | None, resources: Resources, engine: str | None, layout: LayoutView | None, claims: list[ClaimView]
) -> NeedView | None:
    if need is None or layout is None:
        return None if need is None else need_view(need, resources, engine)
    gpu = next((claim for claim in claims if claim.kind == "gpu"), None)
    memory_mib, exclusive = (gpu.memory_mib, gpu.exclusive) if gpu is not None else (0, False)
    return need_view(need, resources, engine, Layout(memory_mib=memory_mib, exclusive=exclusive, **asdict(layout)))


def _view(
    row: Any, claims: list[ClaimView], need: Need | None, utilization: InstanceUtilization | None
) -> InstanceView:
    spec = spec_from_json(row["spec"])
    # Older epochs may still be fenced; only the newest is shown.
    newest = max((claim.epoch for claim in claims), default=0)
    present = [claim for claim in claims if claim.epoch == newest]
    workers = list(dict.fromkeys(claim.worker for claim in present))
    layout = from_plain(LayoutView, row["layout"]) if present and row["layout"] else None
    return view_of(
        InstanceView,
        row,
        spec=view_of(InstanceSpecView, row, engine=spec.engine, runtime=spec.runtime, model=spec.model),
        status=view_of(
            InstanceStatus,
            row,
            message=_joined(row["message"], row["held"]),
            engine=row["engine"] if present else None,
            layout=layout,
            need=_need(need, spec.resources, row["engine"], layout, present),
            worker=workers[0] if workers else None,
            workers=workers,
            gpus=[claim.device for claim in present if claim.kind == "gpu"],
            claims=claims,
            explain=_explain(row["explain"], row["held"]) if row["explain"] else None,
            utilization=utilization,
        ),
    )


def _explain(stored: Any, held: str | None) -> Explain:
    """Why it is pending. `held`: why its rollout is blocked."""
    explain = from_plain(Explain, stored)
    if held is None:
        return explain
    return msgspec.structs.replace(explain, message=_joined(explain.message, held), note=_joined(explain.note, held))


def _joined(*texts: str | None) -> str:
    return "; ".join(text for text in texts if text)
