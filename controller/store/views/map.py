"""All workers and GPUs in columns. Rows become columns without an object for each: there may be thousands."""

from collections.abc import Sequence
from typing import Any, Final

from controller.store.core.database import Reader
from controller.store.views.gpus import FIGURES, FROM, SHOWN
from controller.store.views.paging import read_time
from controller.store.views.workers import STATE_COLUMNS, worker_conditions, worker_state
from schemas.api.gpus import MapGpus, MapGpuState, MapView, MapWorkers
from schemas.host_reasons import WORKERS
from schemas.worker_conditions import CONTAINERS, is_trouble

_MIB: Final = 2**20
# Counted in one query, since a subquery for each of a thousand workers takes longer than the rest of the read.
_WORKERS: Final = f"""
    with held as (
        select d.worker_id, count(distinct c.instance_id) as instances
          from claims c join devices d on d.uuid = c.device group by d.worker_id)
    select {STATE_COLUMNS}, coalesce(h.instances, 0) as instances
      from workers w
      left join worker_liveness l on l.worker_id = w.id
      left join held h on h.worker_id = w.id
     where w.deleted_at is null or h.instances > 0
     order by w.name, w.id"""  # noqa: S608 - a constant, no input
# An instance counts once, though it may hold a GPU by claims of a fenced epoch and of a newer one.
_GPUS: Final = f"""
    with held as (
        select c.device, count(distinct c.instance_id) as holders, bool_or(c.exclusive) as exclusive,
               case when min(p.name) = max(p.name) then min(p.name) end as holder
          from claims c
          join instances i on i.id = c.instance_id
          join deployments p on p.uid = i.deployment_uid
         group by c.device)
    select d.worker_id, d.uuid, d.index, d.model, d.memory_mib, d.claimed_mib, d.health, d.health_reason, d.present,
           d.mig_mode, d.cordoned, {FIGURES}, h.holder, coalesce(h.holders, 0) as holders,
           coalesce(h.exclusive, false) as exclusive
      {FROM}
      left join held h on h.device = d.uuid
     where {SHOWN}
     order by w.name, d.index, d.uuid"""  # noqa: S608 - a constant, no input


async def read_map(connection: Reader) -> MapView:
    """Reads in one REPEATABLE READ transaction."""
    at = await read_time(connection)
    workers = await connection.fetch(_WORKERS)
    gpus = await connection.fetch(_GPUS)
    number_of = {row["id"]: number for number, row in enumerate(workers)}
    models = sorted({row["model"] for row in gpus})
    return MapView(at=at, workers=_workers(workers), gpus=_gpus(gpus, number_of, models), models=models)


def _workers(rows: Sequence[Any]) -> MapWorkers:
    states = [worker_state(row) for row in rows]
    reasons = [worker_reason(row) for row in rows]
    return MapWorkers(
        name=[row["name"] for row in rows],
        state=states,
        reason=[reason for reason, _ in reasons],
        message=[message or None for _, message in reasons],
        since=[_since(row, state) for row, state in zip(rows, states, strict=True)],
        connected=[bool(row["connected"]) for row in rows],
        cordoned=[row["cordoned"] for row in rows],
        draining=[row["draining"] for row in rows],
        instances=[row["instances"] for row in rows],
        labels=[row["labels"] for row in rows],
    )


def worker_reason(row: Any) -> tuple[str, str]:
    """Code and text of the worker's phase, else of the first condition in trouble; empty without trouble."""
    # Most hosts have no containers.
    trouble = [c for c in worker_conditions(row) if is_trouble(c) and c.type != CONTAINERS]
    reason: str = row["reason"] or next((c.reason for c in trouble), "")
    message = next((condition.message for condition in trouble if condition.reason == reason and condition.message), "")
    meaning = WORKERS[reason].meaning if reason in WORKERS else ""
    return reason, message or meaning


def _since(row: Any, state: str) -> Any:
    return {row["phase"]: row["phase_since"], "deleted": row["deleted_at"]}.get(state)


def _gpus(rows: Sequence[Any], workers: dict[Any, int], models: Sequence[str]) -> MapGpus:
    model_of = {model: number for number, model in enumerate(models)}
    return MapGpus(
        worker=[workers[row["worker_id"]] for row in rows],
        index=[row["index"] for row in rows],
        uuid=[row["uuid"] for row in rows],
        model=[model_of[row["model"]] for row in rows],
        memory_total_bytes=[row["memory_mib"] * _MIB for row in rows],
        memory_claimed_bytes=[row["claimed_mib"] * _MIB for row in rows],
        memory_free_bytes=[row["free_mib"] * _MIB for row in rows],
        memory_used_bytes=[None if (used := row["used_mib"]) is None else used * _MIB for row in rows],
        utilization=[row["utilization"] for row in rows],
        state=[_gpu_state(row) for row in rows],
        message=[row["health_reason"] or None for row in rows],
        cordoned=[row["cordoned"] for row in rows],
        holder=[row["holder"] for row in rows],
        holders=[row["holders"] for row in rows],
        exclusive=[row["exclusive"] for row in rows],
    )


def _gpu_state(row: Any) -> MapGpuState:
    """The gravest state that holds."""
    states: tuple[tuple[MapGpuState, bool], ...] = (
        ("absent", not row["present"]),
        ("unhealthy", row["health"] == "unhealthy"),
        ("mig_mode", row["mig_mode"]),
        ("cordoned", row["cordoned"]),
        ("unknown", row["health"] == "unknown"),
    )
    return next((state for state, holds in states if holds), "ok")
