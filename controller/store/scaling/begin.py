"""The autoscaler's first number, where a manifest gets a range of replicas or leaves its dry run."""

import uuid
from typing import Any, Final

from controller.domain.instances import IntentFacts
from controller.domain.wanted import follows_requests, kept_number
from schemas.manifest.deployment import DeploymentSpec

_INTENTS: Final = "select source, min_replicas, max_replicas from intents where deployment_uid = $1"
_NUMBER: Final = """
    insert into intents (deployment_uid, source, min_replicas, max_replicas, reason)
    values ($1, 'autoscaler', $2, $2, 'scaled')
    on conflict (deployment_uid, source) do update
       set min_replicas = excluded.min_replicas, max_replicas = excluded.max_replicas, reason = excluded.reason,
           message = '', created_at = now()"""


async def keep_number(connection: Any, uid: uuid.UUID, before: DeploymentSpec, spec: DeploymentSpec) -> None:
    """Writes the number that was wanted until now, within the new bounds, where replicas follow the requests from now.

    So no busy replica stops because a manifest has got a range.

    Args:
        connection: in the transaction that changes the spec. The limits of user and policy still stand.
        uid: of the deployment, whose row is locked.
        before: its spec until now.
        spec: its new spec.
    """
    if not follows_requests(spec):
        return
    rows = await connection.fetch(_INTENTS, uid)
    intents = [IntentFacts(row["source"], row["max_replicas"], "", min_replicas=row["min_replicas"]) for row in rows]
    number = kept_number(before, spec, intents)
    if number is not None:
        await connection.execute(_NUMBER, uid, number)
