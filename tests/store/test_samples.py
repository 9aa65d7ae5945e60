"""Samples in the database: each once, dated by their age, only of the newest session and of the worker's own GPUs."""

import time

import pytest

from controller.store.core.database import Database
from controller.store.telemetry.samples import (
    NoPartitionError,
    Sample,
    SamplesWritten,
    SessionSamples,
    read_history,
    read_horizon,
    read_new,
    write_samples,
)
from schemas.wire import SamplePeriod
from support.builders.samples import add_partitions, own, period, sample_rows
from support.database.ledger import Host, add_host, rows

NOW_S = 5_000.0  # on the controller's monotonic clock
AGENT_S = 77.0  # on the agent's, at the same moment


def sent(host: Host, *periods: SamplePeriod, session: int = 1, boot_id: str = "boot") -> SessionSamples:
    return SessionSamples(host.id, session, boot_id, NOW_S - AGENT_S, periods)


async def write(db: Database, *batch: SessionSamples) -> SamplesWritten:
    async with db.transaction() as connection:
        return await write_samples(connection, batch, lambda: NOW_S)


async def test_they_are_dated_by_their_age(migrated: Database) -> None:
    await add_partitions(migrated)
    host = await add_host(migrated, "w", gpus=2)
    a, b = host.gpus
    process = own("i-1", {a: 12.5, b: None}, requests=3)
    written = await write(migrated, sent(host, period(1, AGENT_S - 3600, {a: 40, b: 0}, process)))
    assert (written.held, written.rows, written.too_old) == ({(host.id, 1)}, 2, 0)
    first, second = await sample_rows(migrated)
    assert 3600 <= first["age"] < 3605
    assert (first["device"], first["max"], first["used_mib"]) == (a, 40, 7)
    assert first["processes"] == [["i-1", 1, 0, 12.5, 12.5, 3, None]]
    assert second["processes"] == [["i-1", 1, 0, None, None, 3, None]]


async def test_repeats_and_reorderings_change_nothing(migrated: Database) -> None:
    await add_partitions(migrated)
    host = await add_host(migrated, "w", gpus=1)
    (gpu,) = host.gpus
    one, two, three = (period(seq, AGENT_S - 40 + 10 * seq, {gpu: seq}) for seq in (1, 2, 3))
    await write(migrated, sent(host, two, one))
    await write(migrated, sent(host, two, three, one))
    await write(migrated, sent(host, one, two, three))
    assert [row["seq"] for row in await sample_rows(migrated)] == [1, 2, 3]


async def test_after_a_boot_the_numbers_begin_anew(migrated: Database) -> None:
    await add_partitions(migrated)
    host = await add_host(migrated, "w", gpus=1)
    (gpu,) = host.gpus
    await write(migrated, sent(host, period(900, AGENT_S - 20, {gpu: 1})))
    await write(migrated, sent(host, period(5, AGENT_S - 10, {gpu: 2}), boot_id="next"))
    await write(migrated, sent(host, period(5, AGENT_S - 10, {gpu: 2}), boot_id="next"))
    assert [row["seq"] for row in await sample_rows(migrated)] == [900, 5]


async def test_an_older_session_writes_nothing(migrated: Database) -> None:
    await add_partitions(migrated)
    host = await add_host(migrated, "w", gpus=1)
    (gpu,) = host.gpus
    async with migrated.transaction() as c:
        await c.execute("update workers set session = 2")
    written = await write(migrated, sent(host, period(1, AGENT_S, {gpu: 1})))
    assert (written.held, written.rows) == (set(), 0)
    assert await sample_rows(migrated) == []
    assert await rows(migrated, "select 1 from sample_progress") == []


async def test_many_gpus_beside_many_processes_cost_what_each_says_of_its_own(migrated: Database) -> None:
    """Not the one number times the other."""
    await add_partitions(migrated)
    host = await add_host(migrated, "w", gpus=256)
    processes = [own(f"i-{n:05}", {host.gpus[n % 256]: 1.0}, requests=None) for n in range(10_000)]
    costs: dict[int, list[float]] = {1: [], len(host.gpus): []}
    for seq in range(1, 7):  # in turns, and the least of three: a collection of the interpreter costs as much
        gpus = host.gpus[:1] if seq % 2 else host.gpus
        begun = time.process_time()
        await write(migrated, sent(host, period(seq, AGENT_S, dict.fromkeys(gpus, 1.0), *processes)))
        costs[len(gpus)].append(time.process_time() - begun)
    stored = [row for row in await sample_rows(migrated) if row["seq"] == 2]
    assert sum(len(row["processes"]) for row in stored) == 10_000
    one, all_of_them = (min(of) for of in costs.values())
    assert all_of_them < 8 * one, costs


async def test_samples_of_another_workers_gpu_are_ignored(migrated: Database) -> None:
    await add_partitions(migrated)
    one, two = await add_host(migrated, "one", gpus=1), await add_host(migrated, "two", gpus=1)
    reported = {one.gpus[0]: 1.0, two.gpus[0]: 0.0, "GPU-unheard-of": 0.0}
    await write(migrated, sent(one, period(1, AGENT_S, reported)))
    assert [row["device"] for row in await sample_rows(migrated)] == [one.gpus[0]]


async def test_the_future_is_now_and_the_forgotten_past_is_left_out(migrated: Database) -> None:
    await add_partitions(migrated, samples_h=8)
    host = await add_host(migrated, "w", gpus=1)
    (gpu,) = host.gpus
    written = await write(
        migrated, sent(host, period(1, AGENT_S - 30 * 3600, {gpu: 1}), period(2, AGENT_S + 3600, {gpu: 2}))
    )
    assert (written.rows, written.too_old) == (1, 1)
    (row,) = await sample_rows(migrated)
    assert (row["seq"], 0 <= row["age"] < 5) == (2, True)


async def test_without_a_partition_no_sample_is_written(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=1)
    batch = sent(host, period(1, AGENT_S, {host.gpus[0]: 1}))
    with pytest.raises(NoPartitionError):
        await write(migrated, batch)
    await add_partitions(migrated)
    assert (await write(migrated, batch)).rows == 1


async def test_late_commits_are_read_once(migrated: Database) -> None:
    await add_partitions(migrated)
    early, late = await add_host(migrated, "early", gpus=1), await add_host(migrated, "late", gpus=1)

    async def look(horizon: str) -> tuple[list[Sample], str]:
        async with migrated.snapshot() as connection:
            return await read_new(connection, horizon)

    async with migrated.snapshot() as connection:
        horizon = await read_horizon(connection)
    async with migrated.transaction() as slow:
        batch = [sent(late, period(1, AGENT_S - 10, {late.gpus[0]: 5}, own("i-1", {late.gpus[0]: 4.0})))]
        await write_samples(slow, batch, lambda: NOW_S)
        await write(migrated, sent(early, period(1, AGENT_S, {early.gpus[0]: 1})))
        found, horizon = await look(horizon)
        assert [sample.device for sample in found] == [early.gpus[0]]
    found, horizon = await look(horizon)
    (sample,) = found
    assert (sample.device, sample.max, sample.period_s) == (late.gpus[0], 5.0, 10.0)
    assert [(p.instance, p.max, p.requests) for p in sample.processes] == [("i-1", 4.0, 0)]
    assert (await look(horizon))[0] == []
    async with migrated.snapshot() as connection:
        past = await read_history(connection, [*early.gpus, *late.gpus], sample.at - 1)
        assert [s.device for s in past] == [early.gpus[0], late.gpus[0]]
        assert await read_history(connection, late.gpus, sample.at + 1) == []
