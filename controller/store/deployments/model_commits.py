"""The commits of a revision's models on the hub, where only its agents could tell them: the first report stays.

The leader keeps those that it has read itself (`leader/analyses.py`). Agents fetch with the deployment's own token, and
may reach a hub of its own.
"""

from collections.abc import Iterable
from typing import Final

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Row
from controller.store.core.events import write_events
from controller.store.deployments.image_digests import RanImage, ran
from schemas.hub import is_commit
from schemas.status_reasons import MODEL_DIFFERS

# Rows are locked in one order, so that the writers of two hubs never deadlock.
_KEEP: Final = """
    with seen as (
        select distinct on (i.deployment_uid, i.revision, x.model) i.deployment_uid, i.revision, x.model, x.commit
          from unnest($1::text[], $2::integer[], $3::text[], $4::text[])
               with ordinality as x (id, rank, model, commit, n)
          join instances i on i.id = x.id
         order by i.deployment_uid, i.revision, x.model, x.rank, x.n),
    open as materialized (
        select r.deployment_uid, r.generation from revisions r
         where exists (select 1 from seen s where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation)
                          and not r.model_commits ? s.model)
         order by r.deployment_uid, r.generation for no key update of r)
    update revisions r
       set model_commits = (select jsonb_object_agg(s.model, s.commit) from seen s
                             where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation))
                           || r.model_commits
      from open o where (o.deployment_uid, o.generation) = (r.deployment_uid, r.generation)"""
_OTHERS: Final = """
    select x.n, i.deployment_uid, i.revision, r.model_commits ->> x.model as kept
      from unnest($1::text[], $2::text[], $3::text[]) with ordinality as x (id, model, commit, n)
      join instances i on i.id = x.id
      join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
     where r.model_commits ->> x.model <> x.commit
     order by x.n"""


async def keep_commits(connection: Connection, written: Iterable[RanImage]) -> None:
    """Keeps the commits of models that were fetched by the name of a branch or tag, unless the revision has one.

    A process that runs another one than its revision has kept is reported by an event.

    Args:
        connection: in the transaction that wrote the reports.
        written: reports of processes that have claims.
    """
    found = [
        (one, model, commit)
        for one in written
        for model, commit in sorted(one.report.model_commits.items())
        if is_commit(commit) and not is_commit(model.rpartition("@")[2])
    ]
    if not found:
        return
    ids, models, commits = [o.report.instance for o, _, _ in found], [m for _, m, _ in found], [c for _, _, c in found]
    await connection.execute(_KEEP, ids, [o.report.rank for o, _, _ in found], models, commits)
    new = [one for one in found if ran(one[0].report) and not one[0].ran_before]
    if new:
        rows = await connection.fetch(
            _OTHERS, [o.report.instance for o, _, _ in new], [m for _, m, _ in new], [c for _, _, c in new]
        )
        of = dict(enumerate(new, start=1))
        await write_events(connection, [_event(*of[row["n"]], row) for row in rows])


def _event(one: RanImage, model: str, commit: str, row: Row) -> NewEvent:
    report = one.report
    message = (
        f"{report.instance} runs commit {commit} of {model}, but revision {row['revision']} keeps {row['kept']}, which "
        "later starts use"
    )
    evidence = {
        "revision": row["revision"], "epoch": report.epoch, "rank": report.rank, "model": model, "commit": commit,
        "kept": row["kept"],
    }  # fmt: skip
    return NewEvent(
        MODEL_DIFFERS, message, (f"deployment:{row['deployment_uid']}", f"instance:{report.instance}"), evidence
    )
