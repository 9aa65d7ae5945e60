"""Users' verbs on a deployment: scale, undo, delete, stop, start, wake, restart, pull.

Each is one transaction with its event and notification. Each raises NotFoundError if no live deployment has the name,
and GenerationConflictError if it is not at generation `if_match`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from controller.domain.access.grants import Power
from controller.domain.events import NewEvent
from controller.domain.wanted import may_sleep
from controller.store.core.database import Database
from controller.store.core.events import CHANNEL, current_actor, notify_all, write_events
from controller.store.core.guards import lock_rows
from controller.store.core.refusals import (
    GenerationConflictError,
    NotFoundError,
    NothingToRestartError,
    NotScaledError,
)
from controller.store.deployments.apply import change_spec, check_secrets, refuse_change
from controller.store.deployments.changes import clear_limits, live_row, missing, record_change
from controller.store.deployments.revisions import revision_to_undo, spec_of_revision, write_change, write_revision
from controller.store.views.deployments import deployment_by_uid, views_of
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec
from schemas.manifest.resources import bounds_of

# One round trip, so that the commit follows the written time closely: the delay until the deployment's computations
# have ended is measured from it.
_DELETE: Final = """
    with gone as (
        update deployments set deleted_at = clock_timestamp()
         where name = $1 and deleted_at is null and generation = coalesce($4, generation) returning *),
    freed as (
        delete from model_names n using gone where n.deployment_uid = gone.uid),
    noted as (
        insert into events (reason, message, objects, actor, request_id, subjects)
        select 'deleted', $2, array['deployment:' || uid], $5, $6,
               event_subjects(array['deployment:' || uid], '{}') from gone)
    select gone.*, pg_notify($3, 'gone ' || uid || '@' || extract(epoch from deleted_at)),
           pg_notify($3, 'deployment ' || uid)
      from gone"""
# Not a replacement that has just been created: it is as new as a restart would make it.
_RESTARTABLE: Final = """
    select i.id from instances i
     where i.deployment_uid = $1 and i.id = coalesce($2, i.id) and i.phase not in ('stopping', 'replaced')
       and not exists (select 1 from relocations m where m.copy_id = i.id and m.state = 'moving')"""
# A succeeded task is not run again while others run: the deployment has not ended yet.
_ENDED: Final = """
    select i.id from instances i
     where i.deployment_uid = $1
       and (i.phase = 'failed' or i.phase = 'succeeded'
            and not exists (select 1 from instances o where o.deployment_uid = $1
                               and o.phase not in ('succeeded', 'failed', 'stopping')))"""
_MARK: Final = "update instances set restart_epoch = epoch where id = any($1)"
# The analysis of a model is retried, too.
_FORGET: Final = """
    update revisions set need_error = null
     where deployment_uid = $1 and generation = $2 and need is null and need_error is not null"""


async def scale(
    database: Database, name: str, low: int | None, high: int | None, *, if_match: int | None = None
) -> DeploymentView:
    """Changes the minimum and the maximum of replicas, in place; None keeps it.

    Raises:
        ManifestError: the result is not valid, such as a maximum below the minimum.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        bounds = bounds_of(row["spec"]["replicas"])
        fewest, most = (bounds[0] if low is None else low), (bounds[1] if high is None else high)
        replicas = fewest if fewest == most else {"min": fewest, "max": most}
        spec = parse_spec({**row["spec"], "replicas": replicas}, name=name)
        await change_spec(connection, row, spec, "scaled", input_hash="")  # in place: no new revision
        return await deployment_by_uid(connection, str(row["uid"]))


async def undo(
    database: Database,
    name: str,
    to: int | None,
    *,
    lacking: Callable[[DeploymentSpec], Sequence[Power]] = lambda _spec: (),
    if_match: int | None = None,
) -> DeploymentView:
    """Goes back to an older revision. Fields that change in place stay as they are.

    Args:
        database: the ledger.
        name: the deployment's name.
        to: number of the revision; None: the previous one.
        lacking: the powers of a spec for which the caller lacks grants.
        if_match: the expected generation.

    Raises:
        NotFoundError: also if the revision is not kept.
        NothingToUndoError: there is no other revision.
        ManifestError: the older revision does not fit the fields that stay.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        number, old = await revision_to_undo(connection, row, to)
        present = DeploymentSpec.model_validate(row["spec"])
        spec = parse_spec(spec_of_revision(present, old), name=name)
        refuse_change(name, present, spec, lacking(spec))
        await check_secrets(connection, name, spec)
        await change_spec(connection, row, spec, "rollout_undone", input_hash="", back_to=number)
        return await deployment_by_uid(connection, str(row["uid"]))


async def delete(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Sets the tombstone; the row is removed once all processes are confirmed dead. Repeating it changes nothing."""
    message = f"deployment {name} was deleted by its user"
    async with database.connection() as connection:
        row = await connection.fetchrow(_DELETE, name, message, CHANNEL, if_match, *current_actor())
        if row is None:
            # Nulls come first, so a live deployment does.
            query = "select * from deployments where name = $1 order by deleted_at desc limit 1"
            row = await connection.fetchrow(query, name)
        if row is None:
            raise missing(name)
        if if_match is not None and row["generation"] != if_match:
            raise GenerationConflictError(name, wanted=if_match, present=row["generation"])
        # From the row as it was: a deployment that never started may be finished by now.
        return (await views_of(connection, [row]))[0]


async def stop(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Limits the deployment to zero replicas until it is started or its spec changes."""
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        status = await connection.execute(
            """insert into intents (deployment_uid, source, max_replicas, reason) values ($1, 'user', 0, 'stopped')
               on conflict (deployment_uid, source) do update set max_replicas = 0, created_at = now()
               where intents.max_replicas <> 0""",
            row["uid"],
        )
        if status != "INSERT 0 0":
            await record_change(connection, row["uid"], "stopped", f"deployment {name} was stopped by its user")
        return await deployment_by_uid(connection, str(row["uid"]))


async def wake(database: Database, name: str, for_s: float, *, if_match: int | None = None) -> DeploymentView:
    """Keeps a deployment awake for `for_s` seconds without requests; 0 ends that.

    Raises:
        NotScaledError: it never sleeps, or its user has stopped it.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        uid = row["uid"]
        _check_may_wake(name, DeploymentSpec.model_validate(row["spec"]))
        if await connection.fetchval(
            "select 1 from intents where deployment_uid = $1 and source = 'user' and max_replicas = 0", uid
        ):
            raise NotScaledError(f"deployment {name!r} is stopped; run: gpuward start {name}")
        await connection.execute(
            """insert into wakes (deployment_uid, source, expires_at)
               values ($1, 'user', now() + make_interval(secs => $2))
               on conflict (deployment_uid, source)
               do update set created_at = now(), expires_at = excluded.expires_at""",
            uid,
            for_s,
        )
        what = f"is kept awake for {for_s:g} s" if for_s else "is no longer kept awake"
        message = f"deployment {name} {what} by its user"
        event = NewEvent("kept_awake", message, (f"deployment:{uid}",), {"for_s": for_s})
        await write_events(connection, [event])
        await notify_all(connection, {"wake": [str(uid)], "status": [str(uid)]})
        return await deployment_by_uid(connection, str(uid))


def _check_may_wake(name: str, spec: DeploymentSpec) -> None:
    if not may_sleep(spec):
        low, high = spec.replica_bounds
        why = f"runs {low}" if low == high else f"runs at least {max(low, 1)}"
        raise NotScaledError(f"deployment {name!r} never sleeps: it {why}; gpuward scale {name} --min 0 lets it")


async def start(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Removes the limits of `stop` and of policies, and runs ended tasks and failed instances again."""
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        limited, ended = await clear_limits(connection, row["uid"]), await run_ended_again(connection, row)
        if limited or ended:
            await record_change(connection, row["uid"], "started", f"deployment {name} was started by its user")
        return await deployment_by_uid(connection, str(row["uid"]))


async def restart(
    database: Database, name: str, instance: str | None = None, *, if_match: int | None = None
) -> DeploymentView:
    """Restarts all instances of a deployment, or only `instance`: as many at a time as its `update` allows.

    Raises:
        NotFoundError: also if it has no such instance.
        NothingToRestartError: it is stopped or asleep.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        uid = row["uid"]
        await _check_not_stopped(connection, row)
        marked = await _mark(connection, row, _RESTARTABLE, uid, instance)
        if not marked and instance is not None:
            raise NotFoundError(f"deployment {name!r} has no instance {instance!r}; `gpuward ps {name}` lists them")
        what = f"deployment {name}" if instance is None else f"instance {instance}"
        await record_change(connection, uid, "restart_requested", f"{what} is restarted by its user")
        return await deployment_by_uid(connection, str(uid))


async def pull(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Makes a new revision of the same spec, which takes the present models of the hub and images of the registry."""
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
    """Lets failed instances and ended tasks run again; returns whether there were any. The deployment is locked."""
    return bool(await _mark(connection, row, _ENDED, row["uid"]))


async def _mark(connection: Any, row: Any, query: str, *args: Any) -> list[str]:
    ids = [instance["id"] for instance in await connection.fetch(query, *args)]
    if ids:
        await lock_rows(connection, instances=ids)
        await connection.execute(_MARK, ids)
        await connection.execute(_FORGET, row["uid"], row["revision"])
    return ids


async def _check_not_stopped(connection: Any, row: Any) -> None:
    name = row["name"]
    if await connection.fetchval(
        "select 1 from intents where deployment_uid = $1 and source in ('user', 'policy') and max_replicas = 0",
        row["uid"],
    ):
        raise NothingToRestartError(f"deployment {name!r} is stopped; run: gpuward start {name}")
    if row["phase"] in ("asleep", "stopped"):
        raise NothingToRestartError(f"deployment {name!r} is {row['phase']}: it runs nothing that could be restarted")
