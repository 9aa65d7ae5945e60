"""Gateways' places in models' queues: one short transaction for all requests of a gateway."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from controller.domain.queue_places import EXPIRES_S, Holder, PlacesAsk, PlacesGrant, lease_places, present
from controller.store.core.events import PLACES, notify

_LOCK: Final = 7_309_446_274  # an arbitrary constant: gateways take turns
_HOLDERS: Final = """
    select deployment_uid::text, gateway_id::text, held, need,
           greatest(extract(epoch from clock_timestamp() - at), 0)::float8 as age
      from queue_places where deployment_uid = any($1::uuid[]) and gateway_id <> $2"""
_WRITE: Final = """
    insert into queue_places (deployment_uid, gateway_id, held, need, at)
    select uid, $1, held, need, clock_timestamp() from unnest($2::uuid[], $3::int[], $4::int[]) x (uid, held, need)
    on conflict (deployment_uid, gateway_id) do update
       set held = excluded.held, need = excluded.need, at = excluded.at"""
_RETURN: Final = "delete from queue_places where gateway_id = $1 and deployment_uid = any($2::uuid[])"
_EXPIRE: Final = """
    delete from queue_places
     where deployment_uid = any($1::uuid[]) and gateway_id::text = any($2::text[])
       and at < clock_timestamp() - make_interval(secs => $3)"""


async def lease_queue_places(
    connection: Any, gateway: uuid.UUID, asks: Sequence[PlacesAsk], in_touch_s: float
) -> list[PlacesGrant]:
    """Returns the places that a gateway holds after these requests, at most one for each deployment. In a transaction.

    Where it lacks places, the other gateways are notified, and return places that they do not need. `in_touch_s`: time
    for which the gateway has sent requests without a gap.
    """
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
    holders: dict[str, dict[str, Holder]] = {}
    for row in await connection.fetch(_HOLDERS, [ask.deployment for ask in asks], gateway):
        of_queue = holders.setdefault(row["deployment_uid"], {})
        of_queue[row["gateway_id"]] = Holder(row["held"], row["need"], row["age"])
    counted = {uid: present(of_queue, in_touch_s) for uid, of_queue in holders.items()}
    gone = {name for uid, of_queue in holders.items() for name in of_queue if name not in counted[uid]}
    if gone:
        await connection.execute(_EXPIRE, list(holders), list(gone), EXPIRES_S)
    grants = [lease_places(ask, counted.get(ask.deployment, {})) for ask in asks]
    await _write(connection, gateway, asks, grants)
    lacking = [ask.need > grant.held and grant.known_s > ask.since_s for ask, grant in zip(asks, grants, strict=True)]
    if any(lacking):
        await notify(connection, PLACES, [str(gateway)])
    return grants


async def return_queue_places(connection: Any, gateway: uuid.UUID) -> None:
    await connection.execute("delete from queue_places where gateway_id = $1", gateway)


async def _write(connection: Any, gateway: uuid.UUID, asks: Sequence[PlacesAsk], grants: Sequence[PlacesGrant]) -> None:
    kept = [(ask, grant) for ask, grant in zip(asks, grants, strict=True) if ask.need or grant.held]
    returned = [ask.deployment for ask, grant in zip(asks, grants, strict=True) if not (ask.need or grant.held)]
    if kept:
        await connection.execute(
            _WRITE,
            gateway,
            [ask.deployment for ask, _ in kept],
            [grant.held for _, grant in kept],
            [ask.need for ask, _ in kept],
        )
    if returned:
        await connection.execute(_RETURN, gateway, returned)
