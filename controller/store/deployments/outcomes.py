"""What gateways count of revisions' requests while one is rolled out."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from controller.domain.rollouts import RevisionCount

_REPORT: Final = """
    insert into gateway_outcomes as o (gateway_id, deployment_uid, revision, attempt, requests, errors)
    select $1, x.uid, x.revision, x.attempt, x.requests, x.errors
      from unnest($2::uuid[], $3::bigint[], $4::int[], $5::bigint[], $6::bigint[])
           as x (uid, revision, attempt, requests, errors)
     where exists (select 1 from gateways where id = $1)
     order by x.uid, x.revision
    on conflict (gateway_id, deployment_uid, revision) do update
       set attempt = excluded.attempt, requests = excluded.requests, errors = excluded.errors"""


async def report_outcomes(connection: Any, gateway: uuid.UUID, counts: Sequence[RevisionCount]) -> None:
    """Writes the counts of a gateway, each as a total of its attempt."""
    await connection.execute(
        _REPORT,
        gateway,
        [uuid.UUID(one.uid) for one in counts],
        [one.revision for one in counts],
        [one.attempt for one in counts],
        [one.requests for one in counts],
        [one.errors for one in counts],
    )
