"""A user's restart: marks the present start of instances, which their deployment's steps then end and begin again."""

from typing import Any, Final

from controller.store.core.database import Database
from controller.store.core.guards import lock_rows
from controller.store.core.refusals import NotFoundError, NothingToRestartError
from controller.store.deployments.changes import record_change
from controller.store.deployments.live import live_row
from controller.store.deployments.revisions import write_change, write_revision
from controller.store.views.deployments import deployment_by_uid
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentSpec

# A replacement that is on its way is as new as a restart would make it.
_RESTARTABLE: Final = """
    select i.id from instances i
     where i.deployment_uid = $1 and i.id = coalesce($2, i.id) and i.phase not in ('stopping', 'replaced')
       and not exists (select 1 from relocations m where m.copy_id = i.id and m.state = 'moving')"""
# One of several tasks that has succeeded is not run again while others run: the deployment has not ended yet.
_ENDED: Final = """
    select i.id from instances i
     where i.deployment_uid = $1
       and (i.phase = 'failed' or i.phase = 'succeeded'
            and not exists (select 1 from instances o where o.deployment_uid = $1
                               and o.phase not in ('succeeded', 'failed', 'stopping')))"""
_MARK: Final = "update instances set restart_epoch = epoch where id = any($1)"
# The analysis of a model is tried again, too.
_FORGET: Final = """
    update revisions set need_error = null
     where deployment_uid = $1 and generation = $2 and need is null and need_error is not null"""


async def restart(
    database: Database, name: str, instance: str | None = None, *, if_match: int | None = None
) -> DeploymentView:
    """Restarts all instances of a deployment, or one: as many at a time as its `update` allows.

    Raises:
        NotFoundError: no live deployment has this name, or it has no such instance.
        GenerationConflictError: it is not at generation `if_match`.
        NothingToRestartError: it is stopped or asleep.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        uid = row["uid"]
        await _check_not_stopped(connection, row)
        found = await _mark(connection, row, _RESTARTABLE, uid, instance)
        if not found and instance is not None:
            raise NotFoundError(f"deployment {name!r} has no instance {instance!r}; `gpuward ps {name}` lists them")
        what = f"deployment {name}" if instance is None else f"instance {instance}"
        await record_change(connection, uid, "restart_requested", f"{what} is restarted by its user")
        return await deployment_by_uid(connection, str(uid))


async def pull(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Makes a new revision of the same spec, which asks hub and registry for what they have now.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        uid, old, present = row["uid"], row["generation"], row["revision"]
        input_hash = await connection.fetchval(
            "select input_hash from revisions where deployment_uid = $1 and generation = $2", uid, present
        )
        spec = DeploymentSpec.model_validate(row["spec"])
        await write_change(connection, uid, old + 1, old + 1, spec)
        await write_revision(connection, uid, old + 1, spec, input_hash)
        message = f"deployment {name} takes the models that the hub has now"
        await record_change(connection, uid, "restart_requested", message, old=old, new=old + 1)
        return await deployment_by_uid(connection, str(uid))


async def run_ended_again(connection: Any, row: Any) -> bool:
    """Lets what has ended run again: failed instances, and a task that has ended; returns whether there were any.

    Args:
        connection: in a transaction that has locked the deployment.
        row: of the deployment.
    """
    return bool(await _mark(connection, row, _ENDED, row["uid"]))


async def _mark(connection: Any, row: Any, query: str, *args: Any) -> list[str]:
    found = [one["id"] for one in await connection.fetch(query, *args)]
    if found:
        await lock_rows(connection, instances=found)
        await connection.execute(_MARK, found)
        await connection.execute(_FORGET, row["uid"], row["revision"])
    return found


async def _check_not_stopped(connection: Any, row: Any) -> None:
    name = row["name"]
    if await connection.fetchval(
        "select 1 from intents where deployment_uid = $1 and source in ('user', 'policy') and max_replicas = 0",
        row["uid"],
    ):
        raise NothingToRestartError(f"deployment {name!r} is stopped; run: gpuward start {name}")
    if row["phase"] in ("asleep", "stopped"):
        raise NothingToRestartError(f"deployment {name!r} is {row['phase']}: it runs nothing that could be restarted")
