"""Process reports: repeated, late, of an older connection, without claims; which are dropped, and what must stop."""

from typing import Any

import asyncpg
import pytest

from controller.domain.access.redaction import BEGIN, END, plain
from controller.domain.events import WRITTEN_FIRST
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, process
from schemas.exit_causes import KILLED_FOR_MEMORY
from schemas.wire import ReportAck
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually


async def set_up(hub: HubUnderTest, *instances: str, name: str = "gpu-1") -> str:
    """A worker with one GPU on which every instance has a claim at epoch 1."""
    worker = await hub.add_worker(name)
    await hub.connect(name, hello([gpu(f"GPU-{name}")]))
    uid = await add_deployment(hub.database, f"d-{name}")
    for instance in instances:
        await add_instance(hub.database, uid, instance, phase="starting", epoch=1)
        await claim(hub.database, f"GPU-{name}", instance, 1024)
    return worker


async def reconnect(hub: HubUnderTest, *reports: object, name: str = "gpu-1", **fields: object) -> AgentDouble:
    return await hub.connect(name, hello([gpu(f"GPU-{name}")], processes=reports, **fields))  # type: ignore[arg-type]  # table data


async def state(hub: HubUnderTest, instance: str = "i") -> tuple[object, ...] | None:
    row = await hub.one("select state, reason, seq, session from processes where instance_id = $1", instance)
    return tuple(row) if row else None


async def test_the_newest_report_wins_in_any_order(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    agent = await reconnect(hub)
    await agent.send(process("i", "running", seq=3))
    await agent.ack(3)
    await agent.send(process("i", "starting", seq=2))
    await agent.ack(2)
    await agent.send(process("i", "running", seq=3))
    await agent.send(process("i", "unhealthy", seq=4))
    await agent.ack(4)
    assert await state(hub) == ("unhealthy", None, 4, 2)


async def test_memory_that_is_not_back_after_an_end_is_an_event(hub: HubUnderTest) -> None:
    worker = await set_up(hub, "i")
    agent = await reconnect(hub)
    for seq, message in ((3, ""), (4, "gpu_memory_held: the driver still lists it on GPU-gpu-1")):
        await agent.send(process("i", "exited", seq=seq, message=message))
        await agent.ack(seq)
    (found,) = await hub.value("select array_agg(objects) from events where reason = 'gpu_memory_held'")
    assert found == ["instance:i", f"worker:{worker}"]


async def test_an_agent_writes_no_story_of_another_hosts_instance(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    await set_up(hub, "j", name="gpu-2")
    agent = await reconnect(hub)
    held = "gpu_memory_held: the driver still lists it"
    for seq, instance in ((3, "j"), (4, "i"), (5, "i")):  # its own once, however often it says so
        await agent.send(process(instance, "exited", seq=seq, message=held))
        await agent.ack(seq)
    found = await hub.value("select array_agg(objects[1]) from events where reason = 'gpu_memory_held'")
    assert found == ["instance:i"]


async def test_strays_without_number_are_few_events(hub: HubUnderTest) -> None:
    await set_up(hub)
    many = [process(f"none-{n}", "running", seq=n, epoch=1) for n in range(1, 301)]
    await reconnect(hub, *many)
    events = "select count(*) from events where reason = 'stray_process'"
    assert await hub.value(events) == WRITTEN_FIRST
    held = "select held, newest->'evidence'->'processes' from event_budgets where reason = 'stray_process'"
    assert tuple(await hub.one(held)) == (51 - WRITTEN_FIRST, 250)


async def test_reports_wake_their_deployment(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    agent = await reconnect(hub)
    heard: list[str] = []
    listener = await hub.database.listen_connection()
    await listener.add_listener("gpuward", lambda *args: heard.append(args[-1]))
    await agent.send(process("i", "running", seq=3))
    await agent.ack(3)
    uid = await hub.value("select uid::text from deployments")

    async def woken() -> bool:
        return f"process {uid}" in heard

    await eventually(woken, "the hint")
    await listener.close()


async def test_an_exit_is_final_and_a_process_alive_after_it_is_stopped(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    agent = await reconnect(hub)
    await agent.send(process("i", "exited", seq=2, reason="exit", exit_code=0))
    await agent.ack(2)
    await agent.send(process("i", "running", seq=1))  # late
    await agent.ack(1)
    assert agent.commands == []
    await agent.send(process("i", "running", seq=3))
    stop = await agent.command()
    assert (stop.command_id, stop.verb, stop.instance, stop.epoch) == (0, "stop", "i", 1)
    assert await state(hub) == ("exited", "exit", 2, 2)


async def test_a_process_missing_from_the_hello_is_gone(hub: HubUnderTest) -> None:
    await set_up(hub, "kept", "dropped")
    before = await reconnect(hub, process("kept", seq=1), process("dropped", seq=2))
    await before.drop()
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    agent = await reconnect(hub, process("kept", seq=1), boot_id="another")
    assert await state(hub, "kept") == ("running", None, 1, 3)
    assert await state(hub, "dropped") == ("exited", "gone", 2, 3)
    assert await hub.value("select count(*) from claims") == 2, "claims are the reconciler's"
    assert isinstance(await agent.next(), ReportAck)
    events = await hub.value("select array_agg(reason order by id) from events")
    assert sorted(events) == ["processes_gone", "worker_rebooted"]


async def test_a_start_that_was_accepted_just_before_a_loss_of_power_has_ended(hub: HubUnderTest) -> None:
    """Its agent has not told more of it, and its journal was not on the disk yet. Only a boot proves that."""
    worker = await set_up(hub, "i")
    await hub.execute(
        """insert into commands (worker_id, instance_id, epoch, rank, verb, payload, state)
           values ($1, 'i', 1, 0, 'start', '{}', 'accepted')""",
        worker,
    )
    await (await reconnect(hub)).drop()
    assert await state(hub) is None
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    await reconnect(hub, boot_id="another")
    assert (await state(hub) or ())[:2] == ("exited", "gone")


async def test_a_loss_of_power_takes_the_number_of_the_newest_report_back(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    connection = await reconnect(hub, process("i", seq=5), report_seq=5)
    await connection.drop()
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    await reconnect(hub, boot_id="another", report_seq=4)
    assert (await state(hub) or ())[:2] == ("exited", "gone")


async def test_nothing_of_an_older_connection_is_written(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    old = await reconnect(hub, process("i", "starting", seq=1))
    # The same agent has connected to another controller since.
    await hub.execute("update workers set session = session + 1")
    await old.send(process("i", "running", seq=2))
    said = await old.end()
    assert said is not None
    assert "newer connection" in said.message
    assert await state(hub) == ("starting", None, 1, 2)


async def test_a_process_of_an_unknown_instance_is_acknowledged_and_stopped(hub: HubUnderTest) -> None:
    await set_up(hub)
    agent = await reconnect(hub)
    await agent.send(process("unknown", "running", seq=5, epoch=3))
    stop = await agent.command()
    assert (stop.command_id, stop.instance, stop.epoch, stop.verb) == (0, "unknown", 3, "stop")
    await agent.ack(5)
    await agent.answer(stop)
    # The stop is repeated until the process is gone, with one event.
    again = await agent.command()
    assert again.instance == "unknown"
    await agent.send(process("unknown", "exited", seq=6, epoch=3))
    await agent.ack(6)
    assert await hub.value("select count(*) from events where reason = 'stray_process'") == 1
    assert not any(session.strays for session in hub.hub._sessions.values())


async def test_a_process_with_released_claims_is_stopped_at_the_hello(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    await reconnect(hub, process("i", seq=1))
    await hub.execute("delete from claims")
    await hub.execute("update instances set epoch = 2")
    agent = await reconnect(hub, process("i", seq=1))
    stop = await agent.command()
    assert (stop.command_id, stop.instance, stop.epoch) == (0, "i", 1)
    await agent.send(process("i", "exited", seq=2, reason="stopped"))
    await agent.ack(2)
    assert await state(hub) == ("exited", "stopped", 2, 3)


async def test_a_worker_cannot_report_for_another(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    await reconnect(hub, process("i", "running", seq=1))
    await set_up(hub, name="gpu-2")
    liar = await reconnect(hub, name="gpu-2")
    await liar.send(process("i", "exited", seq=99, reason="exit"))
    await liar.ack(99)
    assert await state(hub) == ("running", None, 1, 2)


async def test_many_reports_are_written_together(hub: HubUnderTest) -> None:
    names = [f"i-{n:03}" for n in range(60)]
    await set_up(hub, *names)
    agent = await reconnect(hub)
    for n, name in enumerate(names):
        await agent.send(process(name, "running", seq=n + 1))
    await agent.ack(60)
    assert await hub.value("select count(*) from processes where state = 'running'") == 60


async def test_reports_survive_a_failed_write(hub: HubUnderTest) -> None:
    await set_up(hub, "i")
    agent = await reconnect(hub)
    # A held lock makes the write fail by its lock timeout, or wait until its connection is killed.
    blocker = await asyncpg.connect(hub.database.dsn)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("lock table processes in access exclusive mode")
    await agent.send(process("i", "running", seq=1))
    await agent.send(process("i", "unhealthy", seq=2))
    others = "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'"

    async def waiting() -> bool:
        return bool(await blocker.fetch(others))

    await eventually(waiting, "the write waits, and its connection is killed")
    await transaction.rollback()
    await blocker.close()
    await agent.ack(2)
    assert await state(hub) == ("unhealthy", None, 2, 2)


@pytest.mark.parametrize("text", ["last line: \x00\x00", "x" * 100_000])
async def test_unusual_exit_messages_are_kept_as_far_as_possible(hub: HubUnderTest, text: str) -> None:
    await set_up(hub, "i")
    agent = await reconnect(hub)
    await agent.send(process("i", "exited", seq=1, reason="exit", exit_code=-9, message=text))
    await agent.ack(1)
    kept = await hub.value("select message from processes")
    assert 0 < len(kept) <= 4_010
    assert plain(kept)[-1] in ("\ufffd", "x")


OWN = "gpu_memory_held: the driver still lists it"


@pytest.mark.parametrize(
    ("message", "fields", "kept"),
    [
        ("KeyError: 'rope'", {"log_line": "KeyError: 'rope'"}, "[KeyError: 'rope']"),
        (f"KeyError: 'rope'; {OWN}", {"log_line": "KeyError: 'rope'"}, f"[KeyError: 'rope']; {OWN}"),
        (OWN, {"log_line": ""}, OWN),
        ("a\ufdd1 b", {"log_line": "a\ufdd1"}, "[a\ufffd] b"),
        ("x" * 5000, {"log_line": "x" * 5000}, f"...[{'x' * 4000}]"),
        # Agents that do not tell the line: all that they say of an end that nothing asked for may be one.
        ("KeyError: 'rope'", {}, "[KeyError: 'rope']"),
        ("image_not_found: a/b:1", {"reason": "spawn_failed"}, "[image_not_found: a/b:1]"),
        (KILLED_FOR_MEMORY, {}, KILLED_FOR_MEMORY),
        ("no progress for 600 s", {"reason": "start_timeout"}, "no progress for 600 s"),
        ("", {}, ""),
    ],
)
async def test_a_line_of_a_log_is_told_from_the_rest(hub: HubUnderTest, message: str, fields: Any, kept: str) -> None:
    await set_up(hub, "i", "j")
    marked = kept.replace("[", BEGIN).replace("]", END)
    told = {"exit_code": 1, "reason": "exit", "message": message, **fields}
    agent = await reconnect(hub, process("i", "exited", seq=1, **told))
    await agent.send(process("j", "exited", seq=2, **told))
    await agent.ack(2)
    assert await hub.value("select array_agg(message) from processes") == [marked, marked]
    held = [found["agent"] for found in await hub.value("select coalesce(array_agg(evidence), '{}') from events")]
    assert set(held) <= {marked}


async def test_heartbeats_cost_no_write_of_the_worker_or_its_devices(hub: HubUnderTest) -> None:
    await set_up(hub)
    agent = await reconnect(hub)
    versions = (
        "select (select xmin::text from workers) || (select string_agg(xmin::text, ',' order by uuid) from devices)"
    )
    before = await hub.value(versions)
    seen = await hub.value("select last_seen from worker_liveness")
    await agent.beat([gpu("GPU-gpu-1", used_mib=100, utilization=40.0)])
    await eventually(
        lambda: hub.value("select used_mib = 100 and utilization = 40 from device_readings"), "the reading is written"
    )
    await eventually(lambda: hub.value("select last_seen > $1 from worker_liveness", seen), "so is the sign of life")
    assert await hub.value(versions) == before
    await agent.beat([gpu("GPU-gpu-1", health="unhealthy", health_reason="xid 79")])
    await eventually(lambda: hub.value("select health = 'unhealthy' from devices where kind = 'gpu'"), "its health")
    await agent.beat(None)
    await eventually(lambda: hub.value("select used_mib is null from device_readings"), "unknown is not zero")
