"""GPUs as the API shows them, with their claims."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.views.paging import open_cursor, page_of
from schemas.api.envelopes import Page
from schemas.api.gpus import GpuClaimView, GpuSpecView, GpuStatus, GpuView

# Older readings do not count: the value is unknown, not zero.
READING_GOOD_FOR_S: Final = 30
DETAILS_GOOD_FOR_S: Final = 90
# Of a GPU `d`: free memory for one more shared claim.
FREE_MIB: Final = "greatest(d.memory_mib - d.claimed_mib - d.reserved_mib - d.foreign_mib, 0)"
# Shared by the list and the map: a GPU's figures, its worker and fresh reading, and the filter of shown GPUs.
FIGURES: Final = f"""
    {FREE_MIB} as free_mib, w.name as worker,
    case when d.present then r.used_mib end as used_mib,
    case when d.present then r.utilization end as utilization"""
FROM: Final = f"""
      from devices d
      join workers w on w.id = d.worker_id
      left join device_readings r on r.device = d.uuid and r.read_at > now() - interval '{READING_GOOD_FOR_S} s'"""
SHOWN: Final = """
    d.kind = 'gpu' and (w.deleted_at is null or d.claims > 0)
    and (d.present or not starts_with(d.uuid, 'GPU-unreadable-'))"""
_GPUS: Final = f"""
    select d.*, d.uuid as name, d.uuid as uid, {FIGURES}, w.created_at as created_at,
           case when d.present then x.details end as details
      {FROM}
      left join device_details x on x.device = d.uuid and x.read_at > now() - interval '{DETAILS_GOOD_FOR_S} s'
     where {SHOWN}"""
_CLAIMS: Final = """
    select c.device, c.instance_id as instance, c.epoch, c.memory_mib, c.exclusive, p.name as deployment
      from claims c
      join instances i on i.id = c.instance_id
      join deployments p on p.uid = i.deployment_uid
     where c.device = any($1) order by c.instance_id, c.epoch"""


@dataclass(frozen=True, slots=True)
class GpuFigure:
    """A GPU's changing figures; None: unknown."""

    uuid: str
    utilization: int | None  # percent
    used_mib: int | None
    claimed_mib: int


async def gpu_figures(connection: Reader) -> list[GpuFigure]:
    """Reads all shown GPUs, by worker and index."""
    query = f"""select d.uuid, d.claimed_mib, {FIGURES} {FROM} where {SHOWN} order by w.name, d.index, d.uuid"""
    return [
        GpuFigure(row["uuid"], None if (percent := row["utilization"]) is None else round(percent), row["used_mib"],
                  row["claimed_mib"])
        for row in await connection.fetch(query)
    ]  # fmt: skip


async def list_gpus(
    connection: Reader, *, limit: int, cursor: str | None = None, worker: str | None = None
) -> Page[GpuView]:
    """One page by worker and index. Raises BadCursorError if the cursor was not issued for this list."""
    after = open_cursor(cursor, (str, int, str)) or ["", -1, ""]
    query = f"""{_GPUS} and (w.name, d.index, d.uuid) > ($1::text, $2::int, $3::text)
                and ($4::text is null or w.name = $4) order by w.name, d.index, d.uuid limit $5"""
    views = await _with_claims(connection, await connection.fetch(query, *after, worker, limit + 1))
    return page_of(views, limit, lambda view: (view.status.worker, view.status.index, view.uid))


async def gpu_by_uuid(connection: Reader, uuid: str) -> GpuView:
    """Raises NotFoundError if no worker has this GPU."""
    views = await _with_claims(connection, await connection.fetch(f"{_GPUS} and d.uuid = $1", uuid))
    if not views:
        raise NotFoundError(f"no GPU has the UUID {uuid!r}; `gpuward get gpus` lists them")
    return views[0]


async def _with_claims(connection: Reader, rows: Sequence[Any]) -> list[GpuView]:
    claimed = [row["uuid"] for row in rows if row["claims"]]
    claims: dict[str, list[GpuClaimView]] = defaultdict(list)
    for row in await connection.fetch(_CLAIMS, claimed) if claimed else ():
        claims[row["device"]].append(view_of(GpuClaimView, row))
    return [
        view_of(
            GpuView,
            row,
            kind="Gpu",  # the column `kind` is of the device
            spec=GpuSpecView(cordoned=row["cordoned"]),
            status=view_of(GpuStatus, row, claims=claims[row["uuid"]]),
        )
        for row in rows
    ]
