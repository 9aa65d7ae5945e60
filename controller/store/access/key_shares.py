"""Gateways' shares of keys' limits: one short transaction for all requests of a gateway."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from controller.domain.access.key_shares import (
    STALE_S,
    Bucket,
    Holding,
    Member,
    exchange,
    expired,
    fraction_of,
    new_bucket,
)
from schemas.key_limits import KeyLimits, LimitKind, ShareAsk, ShareGrant, SharesAnswer

_LOCK: Final = 7_309_446_273  # an arbitrary constant: exchanges of all gateways go one after another
Buckets = dict[tuple[str, LimitKind], Bucket]


async def exchange_shares(connection: Any, gateway: str, asks: Sequence[ShareAsk]) -> SharesAnswer:
    """The gateway's shares after these requests. Run it in a transaction; a repeated request counts once."""
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
    members, joined, in_touch_s = await _join(connection, gateway)
    gone = [name for name in expired(members, in_touch_s) if name != gateway]
    if gone:
        await connection.execute("delete from share_members where gateway = any($1::uuid[])", gone)
        members = {name: member for name, member in members.items() if name not in gone}
    fraction = fraction_of(gateway, members)
    await connection.execute(
        """insert into share_members (gateway, fraction, seen_at, in_touch_since)
           values ($1, $2, clock_timestamp(), clock_timestamp())
           on conflict (gateway) do update set fraction = excluded.fraction, seen_at = excluded.seen_at,
              in_touch_since = case when excluded.seen_at - share_members.seen_at > make_interval(secs => $3)
                                    then excluded.seen_at else share_members.in_touch_since end""",
        gateway,
        fraction,
        STALE_S,
    )
    grants = await _exchange_all(connection, gateway, asks, members, joined=joined) if asks else ()
    day_ends_s = await connection.fetchval(
        """select extract(epoch from date_trunc('day', clock_timestamp() at time zone 'utc') + interval '1 day'
                                     - clock_timestamp() at time zone 'utc')::float8"""
    )
    return SharesAnswer(fraction, tuple(grants), day_ends_s)


async def leave_shares(connection: Any, gateway: str) -> None:
    """Frees the shares of a gateway that ends."""
    await connection.execute("delete from share_members where gateway = $1", UUID(gateway))


async def _join(connection: Any, gateway: str) -> tuple[dict[str, Member], bool, float]:
    """All members with this gateway; whether it is new; and for how many seconds it was in touch without a gap."""
    rows = await connection.fetch(
        """select gateway::text, fraction,
                  greatest(extract(epoch from clock_timestamp() - seen_at), 0)::float8 as silent,
                  greatest(extract(epoch from seen_at - in_touch_since), 0)::float8 as in_touch
             from share_members"""
    )
    members = {row["gateway"]: Member(row["fraction"], row["silent"]) for row in rows}
    in_touch_s = next((row["in_touch"] + row["silent"] for row in rows if row["gateway"] == gateway), 0.0)
    joined = gateway not in members
    mine = members.setdefault(gateway, Member(0.0, 0.0))
    return members, joined, 0.0 if mine.silent_s > STALE_S else in_touch_s


async def _exchange_all(
    connection: Any, gateway: str, asks: Sequence[ShareAsk], members: Mapping[str, Member], *, joined: bool
) -> list[ShareGrant]:
    buckets = await _read_buckets(connection, {ask.key for ask in asks})
    grants, holdings = [], []
    for ask in asks:
        bucket = buckets.get((ask.key, ask.kind))
        if bucket is None:  # the key or its limit is gone
            continue
        if joined:  # what it used before belongs to shares that have expired
            known = Holding(0.0, ask.spent, ask.minted)
            bucket = Bucket(
                bucket.kind, bucket.capacity, bucket.level, bucket.age_s, {gateway: known, **bucket.holdings}
            )
        buckets[ask.key, ask.kind], grant = exchange(bucket, ask, gateway, members)
        grants.append(grant)
        holdings.append(ask)
    if grants:
        await _write(connection, gateway, grants, holdings)
    return grants


async def _read_buckets(connection: Any, keys: Iterable[str]) -> Buckets:
    """The buckets of these keys by their present limits; a new bucket and that of a new day are full."""
    ids = sorted(keys)
    limits = await connection.fetch(
        """select id::text, rpm, tpm, tokens_per_day, parallel from api_keys
            where id = any($1::uuid[]) and revoked_at is null""",
        ids,
    )
    stored = await connection.fetch(
        """select key_id::text, kind, capacity, level,
                  greatest(extract(epoch from clock_timestamp() - at), 0)::float8 as age,
                  day = (clock_timestamp() at time zone 'utc')::date as today
             from key_buckets where key_id = any($1::uuid[])""",
        ids,
    )
    known = {(row["key_id"], row["kind"]): row for row in stored}
    buckets: Buckets = {}
    for row in limits:
        of_key = KeyLimits((), row["rpm"], row["tpm"], row["tokens_per_day"], row["parallel"])
        for kind, capacity in of_key.capacities().items():
            old = known.get((row["id"], kind))
            if old is None or (kind is LimitKind.DAY and not old["today"]):
                buckets[row["id"], kind] = new_bucket(kind, capacity)
            else:
                buckets[row["id"], kind] = Bucket(kind, old["capacity"], old["level"], old["age"]).resized(capacity)
    return await _with_holdings(connection, ids, buckets, known)


async def _with_holdings(
    connection: Any, ids: Sequence[str], buckets: Buckets, known: Mapping[tuple[str, str], Any]
) -> Buckets:
    holdings: dict[tuple[str, str], dict[str, Holding]] = {}
    for row in await connection.fetch(
        """select key_id::text, kind, gateway::text, held, spent, minted, want
             from key_holdings where key_id = any($1::uuid[])""",
        ids,
    ):
        name = (row["key_id"], row["kind"])
        yesterdays = row["kind"] == LimitKind.DAY and not (name in known and known[name]["today"])
        held = 0.0 if yesterdays else row["held"]
        holdings.setdefault(name, {})[row["gateway"]] = Holding(held, row["spent"], row["minted"], row["want"])
    return {name: Bucket(b.kind, b.capacity, b.level, b.age_s, holdings.get(name, {})) for name, b in buckets.items()}


async def _write(connection: Any, gateway: str, grants: Sequence[ShareGrant], asks: Sequence[ShareAsk]) -> None:
    names = [grant.key for grant in grants], [grant.kind.value for grant in grants]
    await connection.execute(
        """insert into key_buckets (key_id, kind, capacity, level, day, at)
           select k, kind, capacity, level, (clock_timestamp() at time zone 'utc')::date, clock_timestamp()
             from unnest($1::uuid[], $2::text[], $3::bigint[], $4::float8[]) x (k, kind, capacity, level)
           on conflict (key_id, kind) do update set capacity = excluded.capacity, level = excluded.level,
              day = excluded.day, at = excluded.at""",
        *names,
        [grant.capacity for grant in grants],
        [grant.level for grant in grants],
    )
    await connection.execute(
        """insert into key_holdings (gateway, key_id, kind, held, spent, minted, want)
           select $1, * from unnest($2::uuid[], $3::text[], $4::float8[], $5::float8[], $6::float8[], $7::bigint[])
           on conflict (key_id, kind, gateway) do update set held = excluded.held, spent = excluded.spent,
              minted = excluded.minted, want = excluded.want""",
        gateway,
        *names,
        [grant.held for grant in grants],
        [ask.spent for ask in asks],
        [ask.minted for ask in asks],
        [ask.want for ask in asks],
    )
