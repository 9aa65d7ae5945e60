"""An operator's cordon of one GPU. It stays with the GPU's row, whatever agents report."""

from collections.abc import Collection
from typing import Any, Final, Literal

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify
from controller.store.core.refusals import NotFoundError
from controller.store.views.gpus import gpu_by_uuid
from controller.store.workers.gpu_health import gpu_holders
from schemas.api.gpus import GpuView

GpuVerb = Literal["cordon", "uncordon"]
# A GPU in MIG mode stands for its slices. Locked in the order of the claims' triggers.
_LOCK: Final = """
    select d.uuid, d.worker_id, d.cordoned, d.health_reason, w.name as worker,
           d.unsteady_until > clock_timestamp() and d.dismissals = d.dismissed as held_back
      from devices d join workers w on w.id = d.worker_id
     where d.kind = 'gpu' and (w.deleted_at is null or d.claims > 0)
       and (d.uuid = $1 or d.parent = $1 and d.worker_id = (select p.worker_id from devices p where p.uuid = $1))
     order by d.uuid for no key update of d"""
_XID: Final = "xid_"


async def set_gpu_cordon(database: Database, uuid: str, verb: GpuVerb) -> GpuView:
    """Cordons a GPU and its slices (nothing new is placed there; what runs stays), or ends that.

    The end also dismisses a grave Xid, which the agent forgets, and forgives losses: an unsteady GPU is well within
    seconds. Without a cordon, an Xid or losses that count it changes nothing.

    Raises:
        NotFoundError: no worker has this GPU.
    """
    cordoned = verb == "cordon"
    async with database.transaction() as connection:
        rows = await connection.fetch(_LOCK, uuid)
        if uuid not in {row["uuid"] for row in rows}:
            raise NotFoundError(f"no GPU has the UUID {uuid!r}; `gpuward get gpus` lists them")
        changed = [row for row in rows if row["cordoned"] != cordoned or (not cordoned and _is_doubted(row))]
        if changed:
            await connection.execute(
                "update devices set cordoned = $2, dismissed = dismissed + $3 where uuid = any($1)",
                [row["uuid"] for row in changed],
                cordoned,
                0 if cordoned else 1,
            )
            await _record(connection, changed, f"gpu_{verb}ed")
        return await gpu_by_uuid(connection, uuid)


async def read_dismissed(connection: Connection, workers: Collection[str]) -> dict[str, dict[str, int]]:
    """By worker and GPU: how often an operator has dismissed what the driver had reported."""
    rows = await connection.fetch(
        "select worker_id::text as worker, uuid, dismissed from devices"
        " where worker_id = any($1::uuid[]) and kind = 'gpu' and dismissed > 0 order by uuid",
        list(workers),
    )
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["worker"], {})[row["uuid"]] = row["dismissed"]
    return found


def _is_doubted(row: Any) -> bool:
    """Whether something stands against it that an operator may dismiss."""
    return bool(row["health_reason"].startswith(_XID) or row["held_back"])


async def _record(connection: Connection, rows: Collection[Any], reason: str) -> None:
    """Writes one event for each GPU; notifies of the worker and of the deployments that hold claims on it."""
    (worker_id,) = {str(row["worker_id"]) for row in rows}
    holders = await gpu_holders(connection, worker_id, [row["uuid"] for row in rows])
    events = []
    for row in rows:
        held = tuple(f"instance:{instance}" for instance in holders.instances.get(row["uuid"], ()))
        message = f"{row['uuid']} on {row['worker']} was {reason.removeprefix('gpu_')} by an operator"
        evidence = {"dismissed": row["health_reason"]} if reason == "gpu_uncordoned" and _is_doubted(row) else {}
        events.append(NewEvent(reason, message, (f"gpu:{row['uuid']}", f"worker:{worker_id}", *held), evidence))
    await write_events(connection, events)
    await notify(connection, "worker", [worker_id])
    await notify(connection, "deployment", holders.deployments)
