"""Digests of engines' images and commits of models, as agents report them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Row
from controller.store.core.events import write_events
from schemas.hub import is_commit
from schemas.image_names import short_repository
from schemas.status_reasons import IMAGE_DIFFERS, MODEL_DIFFERS
from schemas.wire import ProcessReport

# The first digest of a repository stays. Rows are locked in one order, so that the writers of two hubs never deadlock.
_KEEP: Final = """
    with seen as (
        select distinct on (i.deployment_uid, i.revision, x.repository)
               i.deployment_uid, i.revision, x.repository, x.digest
          from unnest($1::text[], $2::integer[], $3::text[], $4::text[])
               with ordinality as x (id, rank, repository, digest, n)
          join instances i on i.id = x.id
         order by i.deployment_uid, i.revision, x.repository, x.rank, x.n),
    open as materialized (
        select r.deployment_uid, r.generation from revisions r
         where exists (select 1 from seen s where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation)
                          and not r.image_digests ? s.repository)
         order by r.deployment_uid, r.generation for no key update of r)
    update revisions r
       set image_digests = (select jsonb_object_agg(s.repository, s.digest) from seen s
                             where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation))
                           || r.image_digests,
           image_digest = coalesce((select min(s.digest) from seen s
                                     where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation)
                                       and not r.image_digests ? s.repository), r.image_digest)
      from open o where (o.deployment_uid, o.generation) = (r.deployment_uid, r.generation)"""
_OTHERS: Final = """
    select x.n, i.deployment_uid, i.revision, r.image_digests ->> x.repository as kept
      from unnest($1::text[], $2::text[], $3::text[]) with ordinality as x (id, repository, digest, n)
      join instances i on i.id = x.id
      join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
     where r.image_digests ->> x.repository <> x.digest
     order by x.n"""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Rows are locked in one order, so that the writers of two hubs never deadlock.
_KEEP_COMMITS: Final = """
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
_OTHER_COMMITS: Final = """
    select x.n, i.deployment_uid, i.revision, r.model_commits ->> x.model as kept
      from unnest($1::text[], $2::text[], $3::text[]) with ordinality as x (id, model, commit, n)
      join instances i on i.id = x.id
      join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
     where r.model_commits ->> x.model <> x.commit
     order by x.n"""


@dataclass(frozen=True, slots=True)
class RanImage:
    """A report of a process with claims."""

    report: ProcessReport
    ran_before: bool  # an earlier report has shown that its image works

    @property
    def repository(self) -> str:
        """Empty from an agent of an earlier version."""
        return short_repository(self.report.image_repository or "")


async def keep_digests(connection: Connection, written: Iterable[RanImage]) -> None:
    """Keeps the digests of images that run, for revisions that have none of their repository yet.

    An event reports a process that starts to run another digest than its revision has kept. Run it in the transaction
    that wrote the reports.
    """
    running = [image for image in written if _DIGEST.fullmatch(image.report.image_digest or "") and ran(image.report)]
    if not running:
        return
    await connection.execute(
        _KEEP,
        [image.report.instance for image in running],
        [image.report.rank for image in running],
        [image.repository for image in running],
        [image.report.image_digest for image in running],
    )
    new = [image for image in running if not image.ran_before]
    if new:
        await write_events(connection, await _differing(connection, new))


async def _differing(connection: Connection, new: Sequence[RanImage]) -> list[NewEvent]:
    rows = await connection.fetch(
        _OTHERS,
        [image.report.instance for image in new],
        [image.repository for image in new],
        [image.report.image_digest for image in new],
    )
    return [_event(new[row["n"] - 1], str(row["deployment_uid"]), row["revision"], row["kept"]) for row in rows]


def _event(image: RanImage, deployment: str, revision: int, kept: str) -> NewEvent:
    report = image.report
    message = (
        f"{report.instance} runs {report.image_digest} of {image.repository or 'its image'}, but revision {revision} "
        f"keeps {kept}, which later starts use"
    )
    evidence = {
        "revision": revision, "epoch": report.epoch, "rank": report.rank, "repository": image.repository,
        "digest": report.image_digest, "kept": kept,
    }  # fmt: skip
    return NewEvent(IMAGE_DIFFERS, message, (f"deployment:{deployment}", f"instance:{report.instance}"), evidence)


def ran(report: ProcessReport) -> bool:
    """Whether the image worked: its process serves, or has succeeded."""
    if report.state == "exited":
        return report.ready or (report.reason == "exit" and report.exit_code == 0)
    return report.ready or report.state in ("running", "unhealthy")


async def keep_commits(connection: Connection, written: Iterable[RanImage]) -> None:
    """Keeps the commits of models that were fetched by the name of a branch or tag, unless the revision has one.

    An event reports a process that runs another commit than its revision has kept. Run it in the transaction that wrote
    the reports.
    """
    fetched = [
        (image.report, model, commit, ran(image.report) and not image.ran_before)
        for image in written
        for model, commit in sorted(image.report.model_commits.items())
        if is_commit(commit) and not is_commit(model.rpartition("@")[2])
    ]
    if not fetched:
        return
    reports, models, commits, _ = zip(*fetched, strict=True)
    await connection.execute(_KEEP_COMMITS, [r.instance for r in reports], [r.rank for r in reports], models, commits)
    if new := [(report, model, commit) for report, model, commit, is_new in fetched if is_new]:
        reports, models, commits = zip(*new, strict=True)
        rows = await connection.fetch(_OTHER_COMMITS, [r.instance for r in reports], models, commits)
        await write_events(connection, [_commit_event(new[row["n"] - 1], row) for row in rows])


def _commit_event(fetched: tuple[ProcessReport, str, str], row: Row) -> NewEvent:
    report, model, commit = fetched
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
