"""Webhook deliveries: which are due, and the result of each attempt. A message keeps its id over all attempts."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import orjson

from controller.domain.events import NewEvent
from controller.domain.secret_scopes import SecretScope
from controller.store.access.secret_keys import NO_KEYS, SecretKeys, UnreadableSecretError
from controller.store.core.events import write_events

_DUE: Final = """
    select w.id::text as id, w.url, w.secret, w.payload, w.attempts, coalesce(a.deployment_uid::text, '')
               as deployment_uid, s.name is not null as known, s.value, s.sealed, s.key_id, s.deployments
      from webhook_deliveries w
      left join policy_actions a on a.id = w.action_id
      left join secrets s on s.name = w.secret
     where w.finished_at is null and w.not_before <= clock_timestamp() and w.id <> all ($1::uuid[])
     order by w.not_before limit $2"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message. `key` None: its signing secret is not stored, or may not be used, as `key_problem` says."""

    id: str
    url: str
    secret: str
    payload: str
    attempts: int
    deployment_uid: str
    key: str | None
    key_problem: str = ""


async def read_due(connection: Any, *, but: Collection[str], limit: int, keys: SecretKeys = NO_KEYS) -> list[Delivery]:
    """Messages whose next attempt is due, longest due first, without those of `but`. `keys` open their secrets."""
    rows = await connection.fetch(_DUE, list(but), limit)
    return [_delivery(dict(row), keys) for row in rows]


def _delivery(row: dict[str, Any], keys: SecretKeys) -> Delivery:
    known, value, sealed, key_id = (row.pop(name) for name in ("known", "value", "sealed", "key_id"))
    globs = row.pop("deployments")
    if not known:
        return Delivery(**row, key=None)
    # Its scope may have been changed since the policy was written.
    deployment = str(orjson.loads(row["payload"])["data"]["deployment"])
    if refusal := SecretScope(tuple(globs)).refusal(row["secret"], deployment, ""):
        return Delivery(**row, key=None, key_problem=refusal)
    try:
        return Delivery(**row, key=value if sealed is None else keys.open(row["secret"], key_id, sealed))
    except UnreadableSecretError as error:
        return Delivery(**row, key=None, key_problem=str(error))


async def record_delivered(connection: Any, delivery: Delivery) -> None:
    """Records that the receiver has accepted it."""
    await connection.execute(
        """update webhook_deliveries
              set attempts = attempts + 1, delivered = true, finished_at = clock_timestamp(), error = ''
            where id = $1 and finished_at is null""",
        delivery.id,
    )
    await connection.execute("update secrets set used_at = clock_timestamp() where name = $1", delivery.secret)


async def record_failed(connection: Any, delivery: Delivery, error: str, retry_after_s: float | None) -> None:
    """Records a failed attempt. `retry_after_s` None: it was the last one, and an event is written."""
    status = await connection.execute(
        """update webhook_deliveries
              set attempts = attempts + 1, error = $2,
                  not_before = clock_timestamp() + make_interval(secs => coalesce($3::float8, 0)),
                  finished_at = case when $3::float8 is null then clock_timestamp() end
            where id = $1 and finished_at is null""",
        delivery.id,
        error,
        retry_after_s,
    )
    if retry_after_s is None and status != "UPDATE 0":
        attempts = delivery.attempts + 1
        message = f"the webhook {delivery.url} failed for good after {attempts} attempts: {error}"
        evidence = {"url": delivery.url, "attempts": attempts, "error": error, "id": delivery.id}
        event = NewEvent("webhook_failed", message, (f"deployment:{delivery.deployment_uid}",), evidence)
        await write_events(connection, [event])
