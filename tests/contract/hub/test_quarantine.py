"""Two agents with one identity, and an agent that reconnects all the time."""

from datetime import UTC, datetime

from controller.decide.worker_phases import decide
from controller.domain.workers import WorkerSettings
from controller.store.views.workers import workers_by_id
from controller.store.workers.phases import read_workers, write_phases
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, inventory, process
from schemas.api.workers import WorkerView
from schemas.wire import Hello, Rejected
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually

PROCESS = process("d-1", seq=5)


def agent_a() -> Hello:
    return hello(
        shape=inventory([gpu("GPU-a")], hostname="host-a"), boot_id="boot-a", processes=[PROCESS], proxy_port=7001
    )


def agent_b() -> Hello:
    """A clone: its journal knows the process, which is not there; it has a GPU of its own, and a stray."""
    gone = process("d-1", "exited", seq=9, reason="gone", pid=None)
    stray = process("d-9", seq=10)
    shape = inventory([gpu("GPU-b")], hostname="host-b")
    return hello(shape=shape, boot_id="boot-b", processes=[gone, stray], proxy_port=7002)


async def running_on_a(hub: HubUnderTest) -> tuple[str, AgentDouble]:
    """The worker, and A's connection; a connection that nothing holds is closed."""
    worker = await hub.add_worker()
    await hub.execute("update lease set acquired_at = now() - interval '1 day'")
    joined = await hub.connect(first=agent_a())
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="running", epoch=1)
    await claim(hub.database, "GPU-a", "d-1", 1024)
    connection = await hub.connect(first=agent_a())
    await joined.end()
    assert await hub.value("select state from processes where instance_id = 'd-1'") == "running"
    assert (await step(hub, worker)).status.phase == "ready"
    await hub.execute("delete from events")
    return worker, connection


async def step(hub: HubUnderTest, worker: str) -> WorkerView:
    """One step of the workers' reconciler; returns the worker."""
    async with hub.database.transaction() as connection:
        snapshot = await read_workers(connection)
        await write_phases(connection, decide(snapshot, datetime(2020, 1, 1, tzinfo=UTC), WorkerSettings()).changes)
    async with hub.database.connection() as connection:
        (view,) = await workers_by_id(connection, [worker])
    return view


async def test_two_agents_with_one_identity_are_quarantined_and_neither_is_told_to_stop_anything(
    hub: HubUnderTest,
) -> None:
    """faults.md 19. Nothing that either reports is believed, from the first take-over on."""
    worker, first = await running_on_a(hub)
    before = await hub.one("select state, seq from processes where instance_id = 'd-1'")
    address = await hub.value("select proxy_address from workers")
    connections = [first]
    for n in range(5):
        assert (await step(hub, worker)).status.phase == "ready"
        connections.append(await hub.connect(first=agent_a() if n % 2 else agent_b()))
        if n == 0:
            command = await hub.order(worker, "d-1", "stop")
        await connections[-1].send(process("d-1", "exited", seq=20 + n, reason="gone", pid=None))
        await connections[-1].beat([gpu("GPU-c")])
    view = await step(hub, worker)
    assert (view.status.phase, view.status.state, view.status.reason) == (
        "unreachable",
        "quarantined",
        "two_identities",
    )
    (condition,) = view.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Stable", "false", "two_identities")
    events = await hub.database.pool.fetch("select message, actor from events where reason = 'worker_quarantined'")
    assert len(events) == 1
    for named in ("host-a at 127.0.0.1 (proxy port 7001)", "host-b at 127.0.0.1 (proxy port 7002)"):
        assert named in events[0]["message"]
        assert named in condition.message
    assert events[0]["actor"] == "agent:gpu-1"

    assert tuple(await hub.one("select state, seq from processes where instance_id = 'd-1'")) == tuple(before)
    assert await hub.value("select array_agg(uuid order by uuid) from devices where kind = 'gpu'") == ["GPU-a"]
    assert await hub.value("select present and claims = 1 from devices where uuid = 'GPU-a'")
    assert await hub.value("select proxy_address from workers") == address
    for connection in connections[:-1]:
        assert isinstance(await connection.end(), Rejected)
    assert [c.commands for c in connections] == [[]] * 6
    assert await hub.value("select state = 'open' from commands where id = $1", command)
    reasons = set(await hub.value("select array_agg(reason) from events"))
    assert not reasons & {"stray_process", "processes_gone", "gpu_missing", "worker_rebooted"}


async def test_a_quarantine_ends_by_itself_once_one_agent_is_left(hub: HubUnderTest) -> None:
    worker, first = await running_on_a(hub)
    for n in range(5):
        last = await hub.connect(first=agent_a() if n % 2 else agent_b())
    assert (await first.end()) is not None
    assert (await step(hub, worker)).status.state == "quarantined"
    await hub.execute("update workers set quarantined_until = clock_timestamp(), recent_hellos = recent_hellos - 0")
    session = next(iter(hub.hub._sessions.values()))
    session.held_until = 0.0
    await last.beat([])
    said = await last.end()
    assert said is not None
    assert "connect again" in said.message
    await hub.execute("update workers set recent_hellos = jsonb_build_array(recent_hellos -> -1)")
    back = await hub.connect(first=agent_b())
    view = await step(hub, worker)
    assert view.status.phase == "ready"
    assert [(c.type, c.message) for c in view.status.conditions] == [("GpusHealthy", "GPU-a (missing)")]
    await back.ack(10)  # its reports are taken again
    await eventually(
        lambda: hub.value("select state = 'exited' from processes where instance_id = 'd-1'"), "it is believed"
    )


async def test_an_agent_that_reconnects_more_than_five_times_a_minute_is_not_ready(hub: HubUnderTest) -> None:
    """The end of U49. One agent is believed, and obeys; only nothing is placed there."""
    worker, _ = await running_on_a(hub)
    for _ in range(4):
        _ = await hub.connect(first=agent_a())
        assert (await step(hub, worker)).status.phase == "ready"
    last = await hub.connect(first=agent_a())
    view = await step(hub, worker)
    assert (view.status.phase, view.status.reason) == ("unreachable", "reconnects_too_often")
    await hub.order(worker, "d-1", "stop")
    assert (await last.command()).verb == "stop"
    await hub.execute("update workers set quarantined_until = clock_timestamp()")
    assert (await step(hub, worker)).status.phase == "ready"


async def test_a_host_that_rebooted_a_while_ago_is_believed_at_once(hub: HubUnderTest) -> None:
    _, first = await running_on_a(hub)
    await hub.execute("update worker_liveness set last_seen = last_seen - interval '16 seconds'")
    again = hello(shape=inventory([gpu("GPU-a")], hostname="host-a"), boot_id="boot-2", proxy_port=7001)
    await hub.connect(first=again)
    await first.end()
    assert await hub.value("select state from processes where instance_id = 'd-1'") == "exited"
