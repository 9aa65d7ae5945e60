"""A deployment's revisions: immutable specs, with the key that made each. A bounded number is kept."""

from typing import Any, Final

from controller.domain.rollouts import RolloutState
from controller.domain.spec_changes import processes_of
from controller.store.core.events import current_actor
from controller.store.core.refusals import NotFoundError, NothingToUndoError
from controller.store.deployments.specs import spec_to_json
from schemas.manifest.deployment import IN_PLACE_FIELDS, DeploymentSpec

KEPT: Final = 10  # revisions of a deployment, in addition to those that instances and its rollout need
# Later than all before it: transactions start in another order than they get the lock, and clocks may step.
_APPLIED_AT: Final = """
    greatest(clock_timestamp(),
             (select max(applied_at) + interval '1 microsecond' from revisions where deployment_uid = $1))"""
_WRITE: Final = f"""
    insert into revisions (deployment_uid, generation, spec, input_hash, actor, request_id, applied_at)
    values ($1, $2, $3, $4, $5, $6, {_APPLIED_AT})"""  # noqa: S608 - our own SQL
_PRUNE: Final = """
    delete from revisions r
     where r.deployment_uid = $1
       and r.generation not in (select generation from revisions where deployment_uid = $1
                                 order by applied_at desc, generation desc limit $2)
       and r.generation <> (select revision from deployments where uid = $1)
       and not exists (select 1 from instances i where i.deployment_uid = $1 and i.revision = r.generation)
       and not exists (select 1 from rollouts o where o.deployment_uid = $1
                          and r.generation in (o.revision, o.stable))"""
# Revisions that still have instances, or to which the rollout would fall back.
_UNDER_WAY: Final = """
    select r.generation, r.spec from revisions r
     where r.deployment_uid = $1 and r.generation <> $2
       and (exists (select 1 from instances i where i.deployment_uid = $1 and i.revision = r.generation
                       and i.phase <> 'stopping')
            or exists (select 1 from rollouts o where o.deployment_uid = $1 and o.stable = r.generation
                          and o.state <> 'complete'))
     order by r.generation desc"""
_AGAIN: Final = f"""
    update revisions set applied_at = {_APPLIED_AT}, need_error = null
     where deployment_uid = $1 and generation = $2"""  # noqa: S608 - our own SQL

_CHANGE: Final = """
    with changed as (
        update deployments d
           set generation = $2, spec = $4, revision = $3
          from (select revision from deployments where uid = $1) before
         where uid = $1
        returning d.uid, before.revision <> $3 as is_new)
    insert into placed_before (deployment_uid, replicas)
    select uid, (select count(*) from instances i
                  where i.deployment_uid = changed.uid
                    and (i.phase in ('scheduled', 'starting', 'running', 'unhealthy', 'backoff')
                         or i.phase = 'stopping' and i.stop_reason = 'new_revision'))
      from changed where is_new
        on conflict (deployment_uid) do update set replicas = excluded.replicas"""


async def write_change(connection: Any, uid: Any, generation: int, revision: int, spec: DeploymentSpec) -> None:
    """Writes a deployment's new spec. For a new revision it also stores how many replicas had a place before."""
    await connection.execute(_CHANGE, uid, generation, revision, spec_to_json(spec))


async def write_revision(connection: Any, uid: Any, generation: int, spec: DeploymentSpec, input_hash: str) -> None:
    """Writes a new revision, and deletes the oldest beyond the bound."""
    await connection.execute(_WRITE, uid, generation, spec_to_json(spec), input_hash, *current_actor())
    await connection.execute(_PRUNE, uid, KEPT)


async def revision_under_way(connection: Any, uid: Any, present: int, spec: DeploymentSpec) -> int | None:
    """The older revision of the present rollout that runs the same processes as `spec`, if any."""
    wanted = processes_of(spec)
    for row in await connection.fetch(_UNDER_WAY, uid, present):
        try:
            known = DeploymentSpec.model_validate(row["spec"])
        except ValueError:  # written by another version
            continue
        if processes_of(known) == wanted:
            return int(row["generation"])
    return None


async def apply_again(connection: Any, uid: Any, generation: int) -> None:
    """An older revision becomes the newest one again."""
    await connection.execute(_AGAIN, uid, generation)


async def revision_to_undo(connection: Any, row: Any, to: int | None) -> tuple[int, DeploymentSpec]:
    """The revision to go back to, with its spec.

    Args:
        connection: only reads.
        row: the deployment's locked row.
        to: its number; None: the last that was completely rolled out, else the last that was applied.

    Raises:
        NotFoundError: it is not kept.
        NothingToUndoError: it is the present revision, or no other exists.
    """
    name, present = row["name"], row["revision"]
    if to is None:
        to = await _previous(connection, row["uid"], present)
    if to is None:
        raise NothingToUndoError(f"deployment {name!r} has no revision before {present}")
    if to == present:
        raise NothingToUndoError(f"deployment {name!r} is at revision {to} already")
    stored = await connection.fetchval(
        "select spec from revisions where deployment_uid = $1 and generation = $2", row["uid"], to
    )
    if stored is None:
        raise NotFoundError(f"deployment {name!r} has no revision {to}; gpuward rollout history {name} lists them")
    return to, DeploymentSpec.model_validate(stored)


async def _previous(connection: Any, uid: Any, present: int) -> int | None:
    stable = await connection.fetchval(
        "select stable from rollouts where deployment_uid = $1 and state <> $2", uid, str(RolloutState.COMPLETE)
    )
    if stable is not None and stable != present:
        return int(stable)
    previous = await connection.fetchval(
        """select generation from revisions where deployment_uid = $1 and generation <> $2
            order by applied_at desc, generation desc limit 1""",
        uid,
        present,
    )
    return None if previous is None else int(previous)


def spec_of_revision(present: DeploymentSpec, old: DeploymentSpec) -> dict[str, Any]:
    """The present spec with the processes of an older revision, as JSON."""
    before, now = old.model_dump(mode="json"), present.model_dump(mode="json")
    kept = {field: now[field] for field in IN_PLACE_FIELDS}
    kept["serving"]["adapters"] = before["serving"]["adapters"]
    return {**before, **kept}
