"""What users do beside a deployment's spec: stop, start, keep awake."""

from controller.domain.events import NewEvent
from controller.domain.wanted import may_sleep
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify_all
from controller.store.core.refusals import NotScaledError
from controller.store.deployments.changes import clear_limits, record_change
from controller.store.deployments.live import live_row
from controller.store.deployments.restart import run_ended_again
from controller.store.views.deployments import deployment_by_uid
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentSpec


async def stop(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Limits the deployment to zero replicas until it is started or its spec changes.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
    """
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
    """Keeps a deployment awake for so long, though no request comes; 0 ends that.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
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
    """Removes the limits of `stop` and of policies, and runs again what has ended: tasks, and failed instances.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        limited, ended = await clear_limits(connection, row["uid"]), await run_ended_again(connection, row)
        if limited or ended:
            await record_change(connection, row["uid"], "started", f"deployment {name} was started by its user")
        return await deployment_by_uid(connection, str(row["uid"]))
