"""The tasks between the limits at a gateway and the store: what is exchanged when, and without the store."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.domain.access.key_shares import Bucket, Member, exchange, new_bucket
from controller.live.key_ring import Principal
from controller.live.key_use import UsageRow
from gateway.bodies.json_body import read_json
from gateway.errors import GatewayError
from gateway.quotas import quota_client
from gateway.quotas.quota_client import FLUSH_S, QuotaClient
from gateway.usage.usage_record import UsageRecord
from schemas.key_limits import KeyLimits, LimitKind, ShareAsk, SharesAnswer
from support.leaping_loop import pass_time, run_leaping

CHAT = "/v1/chat/completions"


@dataclass
class Store:
    """The tables of one key, in memory."""

    limits: KeyLimits
    away: bool = False
    exchanges: int = 0
    batches: list[tuple[int, list[UsageRow]]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    buckets: dict[LimitKind, Bucket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.buckets = {kind: new_bucket(kind, limit) for kind, limit in self.limits.capacities().items()}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if self.away:
            raise ConnectionRefusedError("refused")
        yield

    async def exchange(self, _connection: Any, gateway: str, asks: Sequence[ShareAsk]) -> SharesAnswer:
        self.exchanges += 1
        grants = []
        for ask in asks:
            bucket, grant = exchange(
                replace(self.buckets[ask.kind], age_s=0.0), ask, gateway, {gateway: Member(1.0, 0.5)}
            )
            self.buckets[ask.kind] = bucket
            grants.append(grant)
        return SharesAnswer(1.0, tuple(grants), 86400.0)

    async def write(self, _connection: Any, _gateway: str, number: int, rows: Sequence[UsageRow]) -> bool:
        self.batches.append((number, list(rows)))
        return True

    async def leave(self, _connection: Any, gateway: str) -> None:
        self.left.append(gateway)

    def client(self, monkeypatch: pytest.MonkeyPatch) -> QuotaClient:
        monkeypatch.setattr(quota_client, "exchange_shares", self.exchange)
        monkeypatch.setattr(quota_client, "write_usage", self.write)
        monkeypatch.setattr(quota_client, "leave_shares", self.leave)
        database: Any = self
        return QuotaClient(database)


def principal(limits: KeyLimits) -> Principal:
    return Principal("k", "k", "inference", limits=limits)


def named(record: UsageRecord, tokens: int = 0) -> UsageRecord:
    """With a body that may use so many tokens."""
    body = read_json(b'{"model": "m", "max_tokens": %d}' % tokens)
    record.expect("m", 1, body, 0 if tokens else None)
    return record


def test_a_request_that_finds_no_share_waits_for_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(parallel=2)
        store = Store(limits)
        client = store.client(monkeypatch)
        client.start()
        assert client.begin(principal(limits), CHAT) is None
        first = await client.wait(principal(limits), CHAT)
        await pass_time(2.0)
        second = await client.wait(principal(limits), CHAT)
        with pytest.raises(GatewayError, match="may have 2 requests at once"):
            await client.wait(principal(limits), CHAT)
        assert dict(client.headers(first)) == {}
        for one in (first, second):
            named(one).over()
        assert client.begin(principal(limits), CHAT) is not None
        await client.stop()
        assert len(store.left) == 1
        assert all(task.done() for task in client.tasks)
        ((number, rows),) = store.batches
        assert (number, [(row.key, row.model, row.endpoint, row.counts.requests) for row in rows]) == (
            1, [("k", "m", "chat/completions", 2)],
        )  # fmt: skip
        assert abs(rows[0].minute - time.time() / 60) < 2

    run_leaping(run)


def test_tokens_are_reserved_after_one_exchange_where_the_share_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(tpm=1000)
        store = Store(limits)
        client = store.client(monkeypatch)
        client.start()
        record = client.begin(principal(limits), CHAT) or await client.wait(principal(limits), CHAT)
        assert client.reserve(record) is True, "its body is not complete"
        named(record, 700)
        assert client.reserve(record) is False
        await client.wait_to_reserve(record)
        assert dict(client.headers(record))[b"x-ratelimit-remaining-tokens"] == b"300"
        other = client.begin(principal(limits), CHAT) or await client.wait(principal(limits), CHAT)
        with pytest.raises(GatewayError, match="may use 700 tokens"):
            await client.wait_to_reserve(named(other, 700))
        record.over()
        assert client.reserve(record) is True, "it is over"
        await client.stop()

    run_leaping(run)


def test_the_store_hears_at_most_once_a_second_unless_something_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(parallel=2)
        store = Store(limits)
        client = store.client(monkeypatch)
        client.start()
        await pass_time(1.0)
        before = store.exchanges
        await pass_time(10.0)
        assert 4 <= store.exchanges - before <= 11
        before = store.exchanges
        await client.wait(principal(limits), CHAT)
        assert 1 <= store.exchanges - before <= 2
        await client.stop()

    run_leaping(run)


def test_without_the_store_usage_is_kept_and_the_gateway_s_part_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(parallel=2)
        store = Store(limits)
        client = store.client(monkeypatch)
        client.start()
        await client.wait(principal(limits), CHAT)
        store.away = True
        await pass_time(3.0)
        record = client.begin(principal(limits), CHAT)
        assert record is not None, "nothing waits for a store that is away"
        named(record).over()
        await pass_time(2 * FLUSH_S)
        assert store.batches == []
        store.away = False
        await pass_time(2 * FLUSH_S)
        assert [row.counts.requests for _, rows in store.batches for row in rows] == [1]
        assert not any(task.done() for task in client.tasks)
        await client.stop()
        assert len(store.batches) == 1

    run_leaping(run)


def test_a_client_that_was_never_started_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store = Store(KeyLimits(parallel=1))
        client = store.client(monkeypatch)
        async with asyncio.timeout(5):
            await client.stop()
        assert (store.batches, len(store.left)) == ([], 1)

    run_leaping(run)


def test_a_request_without_a_model_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store = Store(KeyLimits())
        client = store.client(monkeypatch)
        record = client.begin(principal(KeyLimits()), CHAT)
        assert record is not None
        record.over()
        await client.stop()
        assert store.batches == []

    run_leaping(run)


def test_an_answer_states_the_rest_of_its_limits_until_its_request_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(rpm=2)
        client = Store(limits).client(monkeypatch)
        client.start()
        record = await client.wait(principal(limits), CHAT)
        assert dict(client.headers(record))[b"x-ratelimit-limit-requests"] == b"2"
        record.over()
        assert client.headers(record) == []
        await client.stop()

    run_leaping(run)


def test_a_key_that_is_forgotten_starts_with_new_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(rpm=2)
        client = Store(limits).client(monkeypatch)
        client.start()
        await client.wait(principal(limits), CHAT)
        assert list(client.limited) == ["k"]
        client.forget(["k"])
        assert list(client.limited) == []
        await client.stop()

    run_leaping(run)


def test_exchanges_keep_a_distance_however_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(parallel=1)
        store = Store(limits)
        client = store.client(monkeypatch)
        client.start()
        await client.wait(principal(limits), CHAT)
        before, loop = store.exchanges, asyncio.get_running_loop()
        began = loop.time()
        for _ in range(10):
            with pytest.raises(GatewayError):
                await client.wait(principal(limits), CHAT)
        assert loop.time() - began >= (store.exchanges - before - 1) * quota_client.SPACING_S
        await client.stop()

    run_leaping(run)


def test_a_used_up_day_ends_at_midnight_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        limits = KeyLimits(tokens_per_day=1)
        client = Store(limits).client(monkeypatch)
        client.start()
        record = await client.wait(principal(limits), CHAT)
        assert record.ticket is not None
        record.ticket.charge(5, asyncio.get_running_loop().time())
        with pytest.raises(GatewayError, match="for today") as refused:
            await client.wait(principal(limits), CHAT)
        until_midnight_s = 86_400 - time.time() % 86_400
        assert abs(int(refused.value.headers["Retry-After"]) - until_midnight_s) < 5
        await client.stop()

    run_leaping(run)
