"""Events and hints: written in the transaction of what they are about.

Events are append-only facts. Those that an agent alone can cause have budgets (`controller.domain.events`). Budgets'
rows are locked in the order of their keys within one call. A transaction that writes such events of one worker or
instance in several calls must hold another lock on it, as hellos and reports do, or else two could wait for each other.

Hints are notifications on one channel; a payload is a kind and ids. The receiver reads the rows: a hint may be lost.
Kinds: `deployment` (a user changed it), `process` (an agent reported; ids are deployments), `worker` (a worker or its
devices changed), `command` (open commands; ids are workers), `status` (derived state changed, for watchers; ids are
deployments), `relocation` (relocations wait or have ended), `scaling` (a user changed a deployment whose replicas
follow the requests, or did so until then), `wake` (a request waits for a sleeping deployment, or none does any more),
`key` (an API key is created or revoked), `secret` (a secret is set, scoped or deleted; ids are names), `policy` (a user
changed a policy), `lease`, `cut` (the database lost commits), `found` (an agent runs what a ledger that lost commits
does not know), `decided` (the leader has decided on that; ids are workers), `places` (a gateway lacks places in queues;
ids are gateways), `ends` (a gateway had requests in flight at an engine that ended), and `gone`, which precedes the
`deployment` of a deletion: its id is `uid@seconds`, with the tombstone's time. A tombstone is never undone, so the
deployment's computations end without a read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from controller.domain.events import SUMMARY_EVERY, WINDOW, EventBudget, NewEvent, budget_of, spend

CHANNEL: Final = "gpuward"
GONE: Final = "gone"
PLACES: Final = "places"
ENDS: Final = "ends"
Hints = Mapping[str, Collection[str]]  # ids by kind
MAX_IDS: Final = 1024  # of one kind in one transaction; beyond this all of the kind are read again
_MAX_PAYLOAD_BYTES: Final = 7_900  # PostgreSQL refuses 8,000
# The update changes nothing: it locks the row, and returns what is there.
_TAKE_BUDGETS: Final = """
    insert into event_budgets as b (object, reason, began_at, written, written_at, held)
    select object, reason, clock_timestamp(), 0, clock_timestamp(), 0
      from unnest($1::text[], $2::text[]) with ordinality as x (object, reason, n) order by n
        on conflict (object, reason) do update set reason = excluded.reason
    returning object, reason, began_at, written, written_at, held, newest, clock_timestamp() as now"""
_KEEP_BUDGETS: Final = """
    update event_budgets b
       set began_at = x.began_at, written = x.written, written_at = x.written_at, held = x.held,
           newest = case when x.held > 0 then coalesce(x.newest, b.newest) end
      from unnest($1::text[], $2::text[], $3::timestamptz[], $4::int[], $5::timestamptz[], $6::bigint[], $7::jsonb[])
           as x (object, reason, began_at, written, written_at, held, newest)
     where (b.object, b.reason) = (x.object, x.reason)"""
_LATE_BUDGETS: Final = """
    with due as (
        select object, reason, held, newest, written_at from event_budgets
         where held > 0 and written_at <= clock_timestamp() - $1::interval
         order by object, reason limit $2 for update skip locked)
    update event_budgets b set held = 0, newest = null, written_at = clock_timestamp()
      from due
     where (b.object, b.reason) = (due.object, due.reason)
    returning due.reason, due.newest, due.held, due.written_at"""
_PORTION: Final = 1_000
_FORGET_BUDGETS: Final = """
    delete from event_budgets where (object, reason) in (
        select object, reason from event_budgets
         where held = 0 and greatest(began_at, written_at) < clock_timestamp() - $1::interval
         limit $2 for update skip locked)"""


class Actor(NamedTuple):
    """Its name is `key:NAME`, `policy:NAME`, `agent:NAME`, `leader`, `controller` or `host`."""

    name: str = "controller"
    request_id: str = ""


_ACTOR: Final[ContextVar[Actor]] = ContextVar("actor", default=Actor())  # noqa: B039 - it is immutable


_ROLE: Final[ContextVar[str]] = ContextVar("role", default="")


@contextmanager
def acting(name: str, request_id: str = "", *, role: str = "") -> Iterator[None]:
    """Events written within get this actor. `role` is the role of its key.

    It is kept in the context, so that every task that a request, a term or a connection starts has it too.
    """
    token, role_token = _ACTOR.set(Actor(name, request_id)), _ROLE.set(role)
    try:
        yield
    finally:
        _ROLE.reset(role_token)
        _ACTOR.reset(token)


def current_role() -> str:
    """The role of the acting key; empty if Gpuward itself acts."""
    return _ROLE.get()


def current_actor() -> Actor:
    return _ACTOR.get()


async def write_events(connection: Any, events: Iterable[NewEvent]) -> None:
    """Appends events in order, in one statement. Events without an actor get the current actor.

    Raises:
        ValueError: an event names no object, so no object's history would show it.
    """
    rows = list(events)
    if unnamed := next((event for event in rows if not event.objects), None):
        raise ValueError(f"the event {unnamed.reason!r} names no object")
    admitted = await _admit(connection, _with_actor(rows, current_actor().name))
    await _append(connection, admitted)


async def write_late_events(connection: Any) -> None:
    """Appends the summaries of events beyond their budgets that are due."""
    await _append(connection, await _late_events(connection))


async def _append(connection: Any, rows: Sequence[NewEvent]) -> None:
    if rows:
        await connection.execute(
            """insert into events (reason, message, evidence, objects, actor, request_id, subjects)
               select reason, message, evidence, string_to_array(objects, E'\n'), actor, $6,
                      event_subjects(string_to_array(objects, E'\n'), evidence)
                 from unnest($1::text[], $2::text[], $3::jsonb[], $4::text[], $5::text[]) with ordinality
                      as x (reason, message, evidence, objects, actor, n)
                order by n""",
            [e.reason for e in rows],
            [e.message for e in rows],
            [dict(e.evidence) for e in rows],
            ["\n".join(e.objects) for e in rows],
            [e.actor for e in rows],
            current_actor().request_id,
        )


async def _admit(connection: Any, events: Sequence[NewEvent]) -> list[NewEvent]:
    """The events to write, in order. Events beyond a budget are counted, for a summary that is written later."""
    spending = [budget_of(event.reason, event.objects) for event in events]
    groups: dict[tuple[str, str], list[NewEvent]] = {}
    for event, object_ in zip(events, spending, strict=True):
        if object_ is not None:
            groups.setdefault((object_, event.reason), []).append(event)
    if not groups:
        return list(events)
    within = await _spend(connection, groups)
    admitted: list[NewEvent] = []
    for event, object_ in zip(events, spending, strict=True):
        if object_ is None:
            admitted.append(event)
        else:  # the events of a group are written at the place of the first
            admitted += within.pop((object_, event.reason), ())
    return admitted


async def _late_events(connection: Any) -> list[NewEvent]:
    """Summaries of events that were not written, if due. Deletes budgets that are no longer used."""
    rows = await connection.fetch(_LATE_BUDGETS, SUMMARY_EVERY, _PORTION)
    await connection.execute(_FORGET_BUDGETS, WINDOW, _PORTION)
    return [_summary(_stored(row["reason"], row["newest"]), row["held"] - 1, row["written_at"]) for row in rows]


async def _spend(
    connection: Any, groups: dict[tuple[str, str], list[NewEvent]]
) -> dict[tuple[str, str], list[NewEvent]]:
    keys = sorted(groups)
    rows = await connection.fetch(_TAKE_BUDGETS, [object_ for object_, _ in keys], [reason for _, reason in keys])
    within: dict[tuple[str, str], list[NewEvent]] = {}
    kept: list[tuple[Any, ...]] = []
    for row in rows:
        key = (row["object"], row["reason"])
        new, before = groups[key], row["written_at"]
        spent = spend(EventBudget(row["began_at"], row["written"], before, row["held"]), row["now"], len(new))
        within[key] = [_summary(_stored(row["reason"], row["newest"]), row["held"] - 1, before)] if spent.late else []
        within[key] += new[: spent.first]
        if spent.summarized is not None:
            within[key].append(_summary(new[-1], spent.summarized, before))
        left = spent.budget
        newest = _storable(new[-1]) if len(new) > spent.first else None
        kept.append((*key, left.began_at, left.written, left.written_at, left.held, newest))
    await connection.execute(_KEEP_BUDGETS, *map(list, zip(*kept, strict=True)))
    return within


def _summary(event: NewEvent, more: int, since: datetime) -> NewEvent:
    """The event, which represents `more` similar events as well."""
    if not more:
        return event
    message = f"{event.message}; {more} more like it since {since:%Y-%m-%d %H:%M:%S} UTC are not listed"
    return replace(event, message=message, evidence={**event.evidence, "not_listed": more})


def _storable(event: NewEvent) -> dict[str, Any]:
    return {
        "message": event.message,
        "objects": list(event.objects),
        "evidence": dict(event.evidence),
        "actor": event.actor,
    }


def _stored(reason: str, kept: dict[str, Any]) -> NewEvent:
    return NewEvent(reason, kept["message"], tuple(kept["objects"]), kept["evidence"], kept["actor"])


def _with_actor(events: Iterable[NewEvent], actor: str) -> list[NewEvent]:
    return [event if event.actor else replace(event, actor=actor) for event in events]


async def notify(connection: Any, kind: str, ids: Iterable[str]) -> None:
    """Sends hints at the transaction's commit. More than `MAX_IDS` ids become `*`: all of that kind."""
    await notify_all(connection, {kind: ids})


async def notify_all(connection: Any, hints: Mapping[str, Iterable[str]]) -> None:
    """`notify` for several kinds in one round trip."""
    if sent := payloads(hints):
        await connection.execute("select pg_notify($1, payload) from unnest($2::text[]) payload", CHANNEL, sent)


def payloads(hints: Mapping[str, Iterable[str]]) -> list[str]:
    """The payloads of these hints, for a statement that sends them together with its writes."""
    return [payload for kind, ids in hints.items() for payload in _payloads(kind, sorted(set(ids)))]


def parse_gone(hint: str) -> tuple[str, datetime] | None:
    """The deployment's uid and the time of its tombstone in a `gone` hint; None if it is malformed."""
    uid, _, seconds = hint.partition("@")
    try:
        return uid, datetime.fromtimestamp(float(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _payloads(kind: str, ids: Sequence[str]) -> Iterator[str]:
    """As many payloads as the ids need: `*` would make receivers read what has not changed."""
    sizes = [1 + len(id_.encode()) for id_ in ids]
    if len(ids) > MAX_IDS or any(len(kind) + size > _MAX_PAYLOAD_BYTES for size in sizes):
        yield f"{kind} *"
        return
    words, total = [kind], len(kind)
    for id_, size in zip(ids, sizes, strict=True):
        if total + size > _MAX_PAYLOAD_BYTES:
            yield " ".join(words)
            words, total = [kind], len(kind)
        words.append(id_)
        total += size
    if ids:
        yield " ".join(words)
