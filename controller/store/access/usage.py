"""Usage of keys: written by gateways in numbered batches, rolled up by the leader, read for reports."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from controller.store.access.key_use import note_use
from controller.store.core.database import Reader, view_of
from schemas.api.usage import UsageItem

_OF_TOKENS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "estimated")
_COUNTS: Final = ("requests", "errors", *_OF_TOKENS, "in_flight_s", "first_tokens", "first_token_s", "refused")
_SHOWN_COUNTS: Final = ("requests", "errors", *_OF_TOKENS, "refused")
_SPANS: Final = ((60, 3600, timedelta(days=2)), (3600, 86400, timedelta(days=60)))
_PORTION: Final = 10_000
_FLUSHES_KEPT: Final = timedelta(days=7)
USAGE_KEPT: Final = timedelta(days=400)
_DIMENSIONS: Final = {"key": "u.key_id::text", "model": "u.model", "endpoint": "u.endpoint"}
DIMENSIONS: Final = tuple(_DIMENSIONS)


@dataclass(slots=True)
class Counts:
    """Usage. Tokens and requests are counts, times are seconds.

    Attributes:
        requests: answered by an engine, or ended with an error.
        errors: a status of 400 or more, or an answer that broke off.
        cached_tokens: the part of the prompts' tokens that engines had in a cache.
        estimated: requests whose tokens are estimated.
        first_tokens: requests with a first token; `first_token_s` is their sum.
        refused: by a limit of the key or a full queue, before an engine got them. `requests` has those of them whose
            model was known.
    """

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    in_flight_s: float = 0.0
    first_tokens: int = 0
    first_token_s: float = 0.0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A minute of a key, model and endpoint. `minute`: minutes since 1970, UTC."""

    minute: int
    key: str
    model: str
    endpoint: str
    counts: Counts


async def write_usage(connection: Any, gateway: str, number: int, rows: Sequence[UsageRow]) -> bool:
    """Adds a gateway's batch, in a transaction. False if it was added before, which changes nothing."""
    taken = await connection.fetchval(
        """insert into usage_flushes as f (gateway, number) values ($1, $2)
           on conflict (gateway) do update set number = excluded.number, at = now() where f.number < excluded.number
           returning true""",
        gateway,
        number,
    )
    if not taken:
        return False
    columns = [list(column) for column in zip(*(astuple(row.counts) for row in rows), strict=True)]
    added = ", ".join(f"{name} = u.{name} + excluded.{name}" for name in _COUNTS)
    if rows:
        await connection.execute(
            f"""insert into key_usage as u (span_s, at, key_id, model, endpoint, {", ".join(_COUNTS)})
                select 60, to_timestamp(x.minute * 60.0), x.key_id, x.model, x.endpoint,
                       {", ".join("x." + name for name in _COUNTS)}
                  from unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::bigint[],
                              $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::float8[], $12::bigint[],
                              $13::float8[], $14::bigint[]) as x (minute, key_id, model, endpoint, {", ".join(_COUNTS)})
                  join api_keys k on k.id = x.key_id
                 order by x.minute, x.key_id, x.model, x.endpoint
                on conflict (span_s, at, key_id, model, endpoint) do update set {added}""",  # noqa: S608 - constants
            [row.minute for row in rows],
            [row.key for row in rows],
            [row.model for row in rows],
            [row.endpoint for row in rows],
            *columns,
        )
        await note_use(connection, {row.key for row in rows})
    return True


async def roll_up_usage(connection: Any) -> None:
    """Rolls up a portion: old minutes to hours, old hours to days. Deletes the oldest days and flush numbers."""
    sums = ", ".join(f"sum({name})" for name in _COUNTS)
    added = ", ".join(f"{name} = u.{name} + excluded.{name}" for name in _COUNTS)
    for span_s, next_s, age in _SPANS:
        await connection.execute(
            f"""with old as (
                    delete from key_usage where ctid in (
                        select ctid from key_usage where span_s = $1 and at < now() - $3::interval limit $4)
                    returning *)
                insert into key_usage as u (span_s, at, key_id, model, endpoint, {", ".join(_COUNTS)})
                select $2, to_timestamp(floor(extract(epoch from at) / $2::integer) * $2::integer), key_id, model,
                       endpoint, {sums}
                  from old group by 2, 3, 4, 5 order by 2, 3, 4, 5
                on conflict (span_s, at, key_id, model, endpoint) do update set {added}""",  # noqa: S608 - constants
            span_s,
            next_s,
            age,
            _PORTION,
        )
    await connection.execute("delete from key_usage where span_s = 86400 and at < now() - $1::interval", USAGE_KEPT)
    await connection.execute("delete from usage_flushes where at < now() - $1::interval", _FLUSHES_KEPT)


async def period(connection: Reader, since_s: float) -> tuple[datetime, datetime]:
    """From `since_s` seconds ago until now, by the database's clock."""
    (row,) = await connection.fetch("select now() as until")
    return row["until"] - timedelta(seconds=since_s), row["until"]


async def read_usage(
    connection: Reader, since: datetime, by: Sequence[str], *, only_key: str | None = None
) -> list[UsageItem]:
    """Sums since then, most tokens first. Hours and days that started earlier count completely."""
    wanted = [_DIMENSIONS[name] for name in by]
    shown = [f"{_DIMENSIONS[name]} as {name}" if name in by else f"null as {name}" for name in DIMENSIONS]
    named = "min(k.name)" if "key" in by else "null"
    sums = ", ".join(f"sum(u.{name})::bigint as {name}" for name in _SHOWN_COUNTS)
    rows = await connection.fetch(
        f"""select {", ".join(shown)}, {named} as key_name, {sums}, sum(u.in_flight_s) as in_flight_s,
                   sum(u.first_token_s) / nullif(sum(u.first_tokens), 0) as first_token_s
              from key_usage u join api_keys k on k.id = u.key_id
             where u.at > $1::timestamptz - make_interval(secs => u.span_s)
               and ($2::uuid is null or u.key_id = $2)
             {"group by " + ", ".join(wanted) if wanted else "having count(*) > 0"}
             order by sum(u.prompt_tokens + u.completion_tokens) desc, sum(u.requests) desc, 1, 2, 3""",  # noqa: S608
        since,
        only_key,
    )
    return [view_of(UsageItem, row) for row in rows]
