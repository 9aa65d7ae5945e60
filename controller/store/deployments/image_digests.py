"""Digests of engines' images and commits of models, as agents report them. A revision keeps the first of each name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Row
from controller.store.core.events import write_events
from schemas.hub import is_commit
from schemas.image_names import short_repository
from schemas.status_reasons import IMAGE_DIFFERS, MODEL_DIFFERS
from schemas.wire import ProcessReport

# Rows are locked in one order, so that the writers of two hubs never deadlock.
_KEEP: Final = """
    with seen as (
        select distinct on (i.deployment_uid, i.revision, x.name) i.deployment_uid, i.revision, x.name, x.value
          from unnest($1::text[], $2::integer[], $3::text[], $4::text[])
               with ordinality as x (id, rank, name, value, n)
          join instances i on i.id = x.id
         order by i.deployment_uid, i.revision, x.name, x.rank, x.n),
    open as materialized (
        select r.deployment_uid, r.generation from revisions r
         where exists (select 1 from seen s where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation)
                          and not r.{column} ? s.name)
         order by r.deployment_uid, r.generation for no key update of r)
    update revisions r
       set {column} = (select jsonb_object_agg(s.name, s.value) from seen s
                        where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation))
                      || r.{column}{too}
      from open o where (o.deployment_uid, o.generation) = (r.deployment_uid, r.generation)"""
_NEWEST_DIGEST: Final = """,
           image_digest = coalesce((select min(s.value) from seen s
                                     where (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation)
                                       and not r.image_digests ? s.name), r.image_digest)"""
_OTHERS: Final = """
    select x.n, i.deployment_uid, i.revision, r.{column} ->> x.name as kept
      from unnest($1::text[], $2::text[], $3::text[]) with ordinality as x (id, name, value, n)
      join instances i on i.id = x.id
      join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
     where r.{column} ->> x.name <> x.value
     order by x.n"""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class _Kind(NamedTuple):
    """`name`, `value`: the keys of both in the evidence of an event."""

    name: str
    value: str
    keep: str
    others: str
    reason: str


_IMAGES: Final = _Kind(
    "repository",
    "digest",
    _KEEP.format(column="image_digests", too=_NEWEST_DIGEST),
    _OTHERS.format(column="image_digests"),
    IMAGE_DIFFERS,
)
_MODELS: Final = _Kind(
    "model",
    "commit",
    _KEEP.format(column="model_commits", too=""),
    _OTHERS.format(column="model_commits"),
    MODEL_DIFFERS,
)


@dataclass(frozen=True, slots=True)
class RanImage:
    """A report of a process with claims."""

    report: ProcessReport
    ran_before: bool  # an earlier report has shown that its image works

    @property
    def ran(self) -> bool:
        """Whether the image worked: its process serves, or has succeeded."""
        report = self.report
        if report.state == "exited":
            return report.ready or (report.reason == "exit" and report.exit_code == 0)
        return report.ready or report.state in ("running", "unhealthy")


class _Reported(NamedTuple):
    """A digest with its repository, empty from an agent of an earlier version; or a commit with its model."""

    image: RanImage
    name: str
    value: str


async def keep_digests(connection: Connection, written: Iterable[RanImage]) -> None:
    """Keeps the digests of images that run, for revisions that have none of their repository yet.

    An event reports a process that starts to run another digest than its revision has kept. Run it in the transaction
    that wrote the reports.
    """
    digests = [
        _Reported(image, short_repository(image.report.image_repository or ""), image.report.image_digest)
        for image in written
        if image.report.image_digest and _DIGEST.fullmatch(image.report.image_digest) and image.ran
    ]
    await _keep(connection, _IMAGES, digests)


async def keep_commits(connection: Connection, written: Iterable[RanImage]) -> None:
    """The same for the commits of models that were fetched by the name of a branch or tag."""
    commits = [
        _Reported(image, model, commit)
        for image in written
        for model, commit in sorted(image.report.model_commits.items())
        if is_commit(commit) and not is_commit(model.rpartition("@")[2])
    ]
    await _keep(connection, _MODELS, commits)


async def _keep(connection: Connection, kind: _Kind, reported: list[_Reported]) -> None:
    if not reported:
        return
    images, names, values = zip(*reported, strict=True)
    reports = [image.report for image in images]
    await connection.execute(kind.keep, [r.instance for r in reports], [r.rank for r in reports], names, values)
    if new := [one for one in reported if one.image.ran and not one.image.ran_before]:
        images, names, values = zip(*new, strict=True)
        rows = await connection.fetch(kind.others, [image.report.instance for image in images], names, values)
        await write_events(connection, [_event(kind, new[row["n"] - 1], row) for row in rows])


def _event(kind: _Kind, reported: _Reported, row: Row) -> NewEvent:
    report, name, value = reported.image.report, reported.name, reported.value
    runs = f"commit {value} of {name}" if kind is _MODELS else f"{value} of {name or 'its image'}"
    message = (
        f"{report.instance} runs {runs}, but revision {row['revision']} keeps {row['kept']}, which later starts use"
    )
    evidence = {
        "revision": row["revision"], "epoch": report.epoch, "rank": report.rank, kind.name: name, kind.value: value,
        "kept": row["kept"],
    }  # fmt: skip
    return NewEvent(
        kind.reason, message, (f"deployment:{row['deployment_uid']}", f"instance:{report.instance}"), evidence
    )
