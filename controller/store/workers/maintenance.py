"""An operator's maintenance of workers: cordon, uncordon, drain, delete. It does not change phases."""

from collections.abc import Iterable
from typing import Any, Final, Literal

from controller.domain.events import NewEvent
from controller.domain.workers import Drain, drain_of
from controller.store.core.database import Database, Reader
from controller.store.core.events import notify_all, write_events
from controller.store.core.refusals import InUseError, NotFoundError
from controller.store.views.workers import worker_by_name
from schemas.api.requests import DrainBody
from schemas.api.workers import WorkerView

WorkerVerb = Literal["cordon", "uncordon", "drain"]
_FLAGS: Final[dict[WorkerVerb, tuple[bool, bool, str]]] = {  # cordoned, draining, the event's reason
    "cordon": (True, False, "cordoned"),
    "uncordon": (False, False, "uncordoned"),
    "drain": (True, True, "draining"),
}
_SET: Final = """
    update workers set cordoned = $2, draining = $3, drain_until = $4, drain_restarts_tasks = $5 where id = $1"""
# A worker with a heartbeat within this time is not dead, even if the operator confirms it.
HEARTBEAT_WITHIN_S: Final = 15


async def set_maintenance(database: Database, name: str, verb: WorkerVerb, how: DrainBody | None = None) -> WorkerView:
    """Cordons (no new instances), drains (running instances leave, too) or undoes both.

    `how`: how to drain; None: the defaults.

    Raises:
        NotFoundError: no live worker has this name.
    """
    cordoned, draining, reason = _FLAGS[verb]
    async with database.transaction() as connection:
        row = await _live(connection, name)
        # Cordoning a draining worker does not end the drain.
        draining = draining or (verb == "cordon" and row["draining"])
        present = drain_in(row)
        drain = present if draining else None
        if verb == "drain":
            at = await connection.fetchval("select clock_timestamp()")
            drain = drain_of(how or DrainBody(), at, present)
        if (row["cordoned"], row["draining"], present) != (cordoned, draining, drain):
            until, restarts_tasks = (drain.until, drain.restarts_tasks) if drain is not None else (None, False)
            await connection.execute(_SET, row["id"], cordoned, draining, until, restarts_tasks)
            await _record(connection, row["id"], reason, f"worker {name} was {reason} by an operator")
        return await worker_by_name(connection, name)


def drain_in(row: Any) -> Drain | None:
    """The drain in a worker's row; None if it is not drained."""
    return Drain(row["drain_until"], row["drain_restarts_tasks"]) if row["draining"] else None


async def delete_worker(database: Database, name: str, *, confirm_dead: bool = False) -> None:
    """Deletes a worker. Its claims are released only if the operator confirms that the host is dead.

    `confirm_dead`: the host is dead for certain, so that no process of it can still run.

    Raises:
        NotFoundError: no live worker has this name.
        InUseError: it holds claims and is not confirmed dead, or is confirmed dead but had a heartbeat just now.
    """
    async with database.transaction() as connection:
        row = await _live(connection, name)
        # Locked in the order of the claims' triggers, so that no claim is added between the count and the tombstone.
        devices = await connection.fetch(
            "select claims from devices where worker_id = $1 order by uuid for no key update", row["id"]
        )
        held = sum(device["claims"] for device in devices)
        if confirm_dead and await _has_recent_heartbeat(connection, row["id"]):
            raise InUseError(
                f"worker {name!r} had a heartbeat within the last {HEARTBEAT_WITHIN_S} s, so it is not dead; stop its "
                f"agent first, or drain it: gpuward drain {name}"
            )
        if held and not confirm_dead:
            raise InUseError(
                f"worker {name!r} still holds {held} claims; drain it first (gpuward drain {name}), or, if the host "
                f"is dead for certain, gpuward delete worker {name} --confirm-dead"
            )
        await connection.execute(
            """update workers set deleted_at = clock_timestamp(),
                      confirmed_dead = case when $2 then clock_timestamp() end
                where id = $1""",
            row["id"],
            confirm_dead,
        )
        reason = "confirmed_dead" if confirm_dead else "worker_deleted"
        await _record(connection, row["id"], reason, f"worker {name} was removed by an operator")


async def live_workers(connection: Reader, names: Iterable[str]) -> list[Any]:
    """Rows with `read_at`, the time of the database. Raises NotFoundError if no live worker has one of the names."""
    wanted = list(names)
    rows = await connection.fetch(
        "select *, clock_timestamp() as read_at from workers where name = any($1) and deleted_at is null", wanted
    )
    missing = set(wanted) - {row["name"] for row in rows}
    if missing:
        raise NotFoundError(f"no worker is named {min(missing)!r}; `gpuward get workers` lists them")
    return list(rows)


async def _live(connection: Any, name: str) -> Any:
    row = await connection.fetchrow("select * from workers where name = $1 and deleted_at is null for update", name)
    if row is None:
        raise NotFoundError(f"no worker is named {name!r}; `gpuward get workers` lists them")
    return row


async def _has_recent_heartbeat(connection: Any, worker_id: Any) -> bool:
    recent: bool | None = await connection.fetchval(
        "select connected and last_seen > clock_timestamp() - $2 * interval '1 s' "
        "from worker_liveness where worker_id = $1",
        worker_id,
        HEARTBEAT_WITHIN_S,
    )
    return bool(recent)


async def _record(connection: Any, worker_id: Any, reason: str, message: str) -> None:
    """Writes the event; notifies of the worker and of the deployments that hold claims on it."""
    await write_events(connection, [NewEvent(reason, message, (f"worker:{worker_id}",))])
    holders = await connection.fetch(
        """select distinct i.deployment_uid from claims c join instances i on i.id = c.instance_id
             join devices d on d.uuid = c.device where d.worker_id = $1""",
        worker_id,
    )
    wanted = {"worker": [str(worker_id)], "deployment": [str(holder["deployment_uid"]) for holder in holders]}
    await notify_all(connection, wanted)
