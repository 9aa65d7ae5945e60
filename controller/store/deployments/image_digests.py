"""The image of a revision: all of its containers run the bytes that the first one ran, whatever its tag becomes."""

import re
from collections.abc import Iterable
from typing import Final

from controller.store.core.database import Connection
from schemas.wire import ProcessReport

# The first digest stays. Rows are locked in one order, so that the writers of two hubs never deadlock.
_KEEP: Final = """
    with seen as (
        select distinct on (i.deployment_uid, i.revision) i.deployment_uid, i.revision, x.digest
          from unnest($1::text[], $2::integer[], $3::text[]) with ordinality as x (id, rank, digest, n)
          join instances i on i.id = x.id
         order by i.deployment_uid, i.revision, x.rank, x.n),
    open as materialized (
        select r.deployment_uid, r.generation from revisions r
          join seen s on (s.deployment_uid, s.revision) = (r.deployment_uid, r.generation)
         where r.image_digest is null
         order by r.deployment_uid, r.generation for no key update of r)
    update revisions r set image_digest = s.digest
      from seen s, open o
     where (r.deployment_uid, r.generation) = (s.deployment_uid, s.revision)
       and (o.deployment_uid, o.generation) = (r.deployment_uid, r.generation) and r.image_digest is null"""


_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


async def keep_digests(connection: Connection, written: Iterable[ProcessReport]) -> None:
    """Keeps the digests of images that run, for revisions that have none yet.

    Args:
        connection: in the transaction that wrote the reports.
        written: reports of processes that have claims.
    """
    running = [report for report in written if _DIGEST.fullmatch(report.image_digest or "") and _ran(report)]
    if running:
        await connection.execute(
            _KEEP, [r.instance for r in running], [r.rank for r in running], [r.image_digest for r in running]
        )


def _ran(report: ProcessReport) -> bool:
    """Whether the image worked: its process serves, or has done what it should."""
    if report.state == "exited":
        return report.ready or (report.reason == "exit" and report.exit_code == 0)
    return report.ready or report.state in ("running", "unhealthy")
