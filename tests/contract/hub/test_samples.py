"""Samples: acknowledged once durable, kept once despite repeats and losses, dated without trust in a host's clock."""

import asyncio
import json
import math
import time
import uuid
from typing import Any

import asyncpg
import msgspec
import pytest
from msgspec.structs import replace

from controller.hub import samples as samples_module
from controller.store.telemetry.samples import SessionSamples, write_samples
from controller.store.views.workers import worker_by_name
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello
from schemas.wire import Heartbeat, Welcome
from support.builders.samples import own, period, sample_rows, samples
from support.database.ledger import add_deployment, add_instance, claim, rows
from support.leading.served_hub import HubUnderTest, eventually, serving

GPU = "GPU-gpu-1"
BASE_S = 123_456.0  # offset of the agent's clock


def clock_s() -> float:
    """The agent's clock."""
    return BASE_S + time.monotonic()


async def connect(hub: HubUnderTest, boot_id: str = "boot-1") -> AgentDouble:
    return await hub.connect("gpu-1", hello([gpu(GPU)], boot_id=boot_id))


async def send_samples(agent: AgentDouble, *periods: Any, sent_s: float | None = None) -> None:
    await agent.send(samples(clock_s() if sent_s is None else sent_s, *periods))


async def stored(hub: HubUnderTest) -> list[int]:
    return [row["seq"] for row in await sample_rows(hub.database)]


async def test_the_welcome_has_the_period_and_samples_are_acknowledged(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    assert isinstance(agent.welcome, Welcome)
    assert agent.welcome.sample_s == 2.5
    process = own("i-1", {GPU: None}, requests=None)
    await send_samples(
        agent, period(1, clock_s() - 60, {GPU: 30}, process), period(2, clock_s() - 50, {GPU: 31}, process)
    )
    await agent.samples_ack(2)
    first, second = await sample_rows(hub.database)
    assert (first["device"], first["max"], first["processes"]) == (GPU, 30, [["i-1", 1, 0, None, None, None, None]])
    assert 60 <= first["age"] < 70
    assert first["age"] - second["age"] == pytest.approx(10, abs=0.01)


async def test_what_engines_say_of_queue_and_cache_is_kept_for_their_own_instances(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    uid = await add_deployment(hub.database, "d")
    for name in ("mine", "foreign"):
        await add_instance(hub.database, uid, name, phase="running", epoch=1)
    await claim(hub.database, GPU, "mine", 1024)
    told = [replace(own(name, {GPU: 5}), queued=3, kv_use=0.5) for name in ("mine", "foreign")]
    late = replace(own("mine", {GPU: 5}), queued=9)
    await send_samples(agent, period(1, clock_s() - 2, {GPU: 30}, *told))
    await send_samples(agent, period(2, clock_s() - 1, {GPU: 30}, own("mine", {GPU: 5})))
    await agent.samples_ack(2)
    query = "select instance_id, epoch, queued, kv_use from engine_loads"
    assert [tuple(row.values()) for row in await rows(hub.database, query)] == [("mine", 1, 3, 0.5)]
    impossible = replace(own("mine", {GPU: 5}), queued=-1, kv_use=1.5)
    await send_samples(agent, period(3, clock_s() - 300, {GPU: 30}, late), period(4, clock_s(), {GPU: 3}, impossible))
    await agent.samples_ack(4)
    assert [tuple(row.values()) for row in await rows(hub.database, query)] == [("mine", 1, 3, 0.5)]
    ages = "select requests, requests_at > at as later from engine_loads"
    assert [tuple(row.values()) for row in await rows(hub.database, ages)] == [(0, True)]


async def test_no_other_agent_speaks_for_an_engine(hub: HubUnderTest) -> None:
    """Nor does it silence the one that may, whose samples are written with its own."""
    senders = []
    for name in ("gpu-1", "gpu-2"):
        worker = await hub.add_worker(name)
        agent = await hub.connect(name, hello([gpu(f"GPU-{name}")]))
        assert isinstance(agent.welcome, Welcome)
        senders.append((worker, agent.welcome.session))
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "i", phase="running", epoch=1)
    await claim(hub.database, GPU, "i", 1024)
    now_s = time.monotonic()
    for true_first in (True, False):
        batch = [
            SessionSamples(
                worker, session, "boot-1", 0.0,
                [period(2 if true_first else 3, now_s, {}, replace(own("i", {}), queued=queued))],
            )
            for (worker, session), queued in zip(senders, (7 if true_first else 8, 0), strict=True)
        ]  # fmt: skip
        async with hub.database.transaction() as connection:
            await write_samples(connection, batch if true_first else batch[::-1], time.monotonic)
        found = await rows(hub.database, "select instance_id, queued from engine_loads")
        assert [tuple(row.values()) for row in found] == [("i", 7 if true_first else 8)]


async def test_samples_send_no_notifications(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    heard: list[str] = []
    listener = await hub.database.listen_connection()
    await listener.add_listener("gpuward", lambda *args: heard.append(args[-1]))
    await send_samples(agent, period(1, clock_s(), {GPU: 30}))
    await agent.samples_ack(1)
    await listener.fetchval("select 1")
    assert [hint for hint in heard if not hint.startswith("worker")] == []
    await listener.close()


async def test_samples_sent_again_after_a_lost_acknowledgement_are_kept_once(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    periods = [period(seq, clock_s() - 100 + 10 * seq, {GPU: seq}) for seq in range(1, 6)]
    await send_samples(agent, *periods[:3])
    await agent.samples_ack(3)
    await agent.drop()
    agent = await connect(hub)
    await send_samples(agent, *periods[:4])
    await send_samples(agent, *periods[3:])
    await agent.samples_ack(5)
    await send_samples(agent, periods[1], periods[0])
    await send_samples(agent, *periods)
    await agent.samples_ack(5)
    assert await stored(hub) == [1, 2, 3, 4, 5]


async def test_a_reboot_restarts_the_sequence(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    await send_samples(agent, period(1_000, clock_s() - 20, {GPU: 1}))
    await agent.samples_ack(1_000)
    await agent.drop()
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    agent = await connect(hub, "boot-2")
    await send_samples(agent, period(3, clock_s() - 10, {GPU: 2}))
    await agent.samples_ack(3)
    assert await stored(hub) == [1_000, 3]


async def test_the_least_delayed_message_dates_all_samples(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    await send_samples(agent, period(1, clock_s(), {GPU: 1}))
    # Delayed for 40 s: by its own times alone it would look 40 s younger.
    await send_samples(agent, period(2, clock_s() - 90, {GPU: 2}), sent_s=clock_s() - 40)
    await agent.samples_ack(2)
    ages = {row["seq"]: row["age"] for row in await sample_rows(hub.database)}
    assert 0 <= ages[1] < 10
    assert 90 <= ages[2] < 100


async def test_hello_and_heartbeats_compare_clocks_too(hub: HubUnderTest) -> None:
    """So the first samples of a connection are not dated by their own delay."""
    await hub.add_worker()
    for seq, (in_hello, in_heartbeat) in enumerate([(True, False), (False, True)], start=1):
        agent = await hub.connect("gpu-1", hello([gpu(GPU)], sent_s=clock_s() if in_hello else None))
        await agent.send(Heartbeat(seq=1, sent_s=clock_s() if in_heartbeat else None, gpus=(gpu(GPU),)))
        await send_samples(agent, period(seq, clock_s() - 90, {GPU: 2}), sent_s=clock_s() - 40)
        await agent.samples_ack(seq)
    ages = {row["seq"]: row["age"] for row in await sample_rows(hub.database)}
    assert all(90 <= age < 105 for age in ages.values()), ages


async def test_samples_of_one_agent_through_two_controllers_are_kept_once(hub: HubUnderTest) -> None:
    await hub.add_worker()
    async with serving(hub.database) as other:
        periods = [period(seq, clock_s() - 100 + 10 * seq, {GPU: seq}) for seq in range(1, 5)]
        here = await connect(hub)
        await send_samples(here, *periods[:2])
        await here.samples_ack(2)
        there = await connect(other)  # the newest session from now on
        await send_samples(here, *periods)
        await send_samples(there, *periods[1:])
        await there.samples_ack(4)
        said = await here.end()
        assert said is not None
        assert "newer connection" in said.message
        assert here.sample_acks == [2]
        assert await stored(hub) == [1, 2, 3, 4]


async def test_failed_writes_acknowledge_nothing_and_keep_samples_once(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter(["before", "after", "before"])

    async def failing(*args: Any) -> Any:
        fault = next(faults, None)
        if fault == "before":
            raise ConnectionResetError
        written = await write_samples(*args)
        if fault == "after":
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return written

    monkeypatch.setattr(samples_module, "write_samples", failing)
    await hub.add_worker()
    agent = await connect(hub)
    for seq in (1, 2, 3):
        await send_samples(agent, period(seq, clock_s() - 30 + seq, {GPU: seq}))
        await asyncio.sleep(0.2)
    assert agent.sample_acks == []
    await agent.samples_ack(3)
    assert next(faults, None) is None
    assert await stored(hub) == [1, 2, 3]


@pytest.mark.parametrize("taken", [True, False])
async def test_an_agent_with_too_many_unwritten_samples_is_cut(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr(samples_module, "MAX_UNWRITTEN_SAMPLES", 5)
    await hub.add_worker()
    agent = await connect(hub)
    each = 1.0 if taken else -1.0  # those that cannot be taken are kept until the database has the others
    await send_samples(agent, *(period(seq, each * clock_s(), {GPU: 1}) for seq in range(1, 4 if taken else 8)))
    said = await agent.end()
    assert said is not None
    assert "samples" in said.message
    assert await stored(hub) == []


async def test_readings_of_processes_on_each_gpu_count_as_unwritten(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "MAX_UNWRITTEN_SAMPLES", 5)
    await hub.add_worker()
    agent = await connect(hub)
    await send_samples(agent, period(1, clock_s(), {GPU: 1}, own("i", {f"GPU-{n}": 1.0 for n in range(4)})))
    said = await agent.end()
    assert said is not None
    assert "too many unwritten samples" in said.message


@pytest.mark.parametrize("change", [{"sent_s": math.nan}])
async def test_a_message_without_a_time_ends_the_connection(hub: HubUnderTest, change: dict[str, Any]) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    await agent.send(_message(**change))
    said = await agent.end()
    assert said is not None
    assert "sent_s" in said.message
    assert await hub.value("select count(*) from events where reason = 'agent_message_malformed'") == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sampled_s": 9_000.0}, "sampled_s"),
        ({"uuid": 7}, "uuid"),
        ({"sampled_s": 10**400}, "sampled_s"),
        ({"own_uuid": "\x00", "own": "x"}, "utilization"),
        ({"own_uuid": "\ud800", "own": "x"}, "utilization"),
    ],
    ids=["its-time", "its-GPU", "a-huge-number", "NUL", "a-lone-surrogate"],
)
async def test_u49_a_period_that_cannot_be_taken_is_dropped_and_shown(
    hub: HubUnderTest, change: dict[str, Any], field: str
) -> None:
    """The others of its message are taken, and so are later ones; the connection stays."""
    worker = await hub.add_worker()
    agent = await connect(hub)
    bad = json.loads(_message(**{"seq": 2} | change))
    good = [json.loads(_message(seq=seq))["periods"][0] for seq in (1, 3)]
    await agent.send(json.dumps({**bad, "periods": [good[0], *bad["periods"], good[1]]}))
    await agent.samples_ack(3)
    await agent.send(_message(seq=4))
    await agent.samples_ack(4)
    assert sorted(await stored(hub)) == [1, 3, 4]
    assert await hub.value("select count(*) from events where reason = 'agent_message_malformed'") == 0

    async def shown() -> bool:
        async with hub.database.connection() as c:
            conditions = (await worker_by_name(c, "gpu-1")).status.conditions
        return len(conditions) == 1 and field in conditions[0].message and conditions[0].reason == "samples_dropped"

    await eventually(shown, "the condition")
    assert (hub.count("sampling_periods_dropped"), hub.count("impossible_readings")) == (1, 0)
    assert await hub.value("select count(*) from workers where id = $1", uuid.UUID(worker)) == 1


async def test_u49_the_last_period_of_a_backlog_that_cannot_be_taken_is_acknowledged(hub: HubUnderTest) -> None:
    """Else the agent would send it for ever."""
    await hub.add_worker()
    agent = await connect(hub)
    await agent.send(_message(seq=7, period_s=-1))
    await agent.samples_ack(7)
    assert await stored(hub) == []


async def test_u49_a_period_that_the_database_refuses_is_dropped(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await hub.execute("alter table samples add check (mean <> 66)")
    agent = await connect(hub)
    await send_samples(agent, *(period(seq, clock_s() - 10 + seq, {GPU: 64 + seq}) for seq in range(1, 5)))
    await agent.samples_ack(4)
    assert await stored(hub) == [1, 3, 4]
    assert "refuses" in await hub.value("select samples_dropped from workers")
    await send_samples(agent, period(5, clock_s(), {GPU: 0}))
    await agent.samples_ack(5)


@pytest.mark.parametrize("value", [101, math.nan])
async def test_u48_an_impossible_utilization_is_unknown(hub: HubUnderTest, value: float) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    facts = json.loads(msgspec.json.encode(gpu(GPU)).decode()) | {"utilization": value}
    await agent.send(json.dumps({"type": "heartbeat", "seq": 1, "sent_s": clock_s(), "gpus": [facts]}))
    bad = json.loads(_message(max=value, sent_s=clock_s(), sampled_s=clock_s() - 1))
    await agent.send(json.dumps(bad))
    await agent.samples_ack(1)
    assert await stored(hub) == [], "a GPU of which nothing is known has no sample"
    await send_samples(agent, period(2, clock_s(), {GPU: 1}))
    await agent.samples_ack(2)
    assert await stored(hub) == [2]
    assert (hub.count("impossible_readings"), hub.count("sampling_periods_dropped")) == (2, 0)
    assert await hub.value("select count(*) from events where reason = 'agent_message_malformed'") == 0


async def test_what_was_read_is_stored_and_impossible_readings_of_the_agent_count(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await connect(hub)
    one = json.loads(_message())
    one["periods"][0] |= {"read_s": 3.5, "impossible": 4}
    one["periods"][0]["processes"][0]["arrived"] = 6
    await agent.send(json.dumps(one))
    await agent.samples_ack(1)
    assert await hub.value("select read_s from samples") == 3.5
    (row,) = await sample_rows(hub.database)
    assert row["processes"] == [["i", 1, 0, 2.0, 3.0, 0, 6]]
    assert hub.count("impossible_readings") == 4


def _message(**change: Any) -> str:
    values = {"uuid": GPU, "mean": 1.0, "max": 1.0, "used_mib": 1, "instance": "i", "epoch": 1, "requests": 0}
    values |= {"sent_s": 8_000.0, "sampled_s": 7_990.0, "period_s": 10.0, "seq": 1, "own": {"mean": 2, "max": 3}}
    values |= {"own_uuid": GPU} | change
    reading = {name: values[name] for name in ("uuid", "mean", "max", "used_mib")}
    process = {name: values[name] for name in ("instance", "epoch", "requests")}
    process["utilization"] = {values["own_uuid"]: values["own"]}
    one = {name: values[name] for name in ("seq", "sampled_s", "period_s")}
    periods = [{**one, "gpus": [reading], "processes": [process]}]
    return json.dumps({"type": "samples", "sent_s": values["sent_s"], "periods": periods})  # NaN as Python writes it
