"""The handshake: what a hello writes, and which agents are refused."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
import structlog
from msgspec.structs import replace

from controller.hub import join
from rig.agent_messages import GIB, gpu, hello, inventory, process
from schemas.wire import CONNECT_PATH, JOIN_PATH, CommandResult, InventoryChanged, Rejected, ReportedGpu
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually

OWN_LABELS = {
    "gpuward/gpu-count": "1", "gpuward/gpu-model": "H100", "gpuward/driver": "580.95", "gpuward/hostname": "h",
}  # fmt: skip


async def test_nothing_but_the_facts_sets_the_agent_s_labels(hub: HubUnderTest) -> None:
    """An older agent sends none, or sends those that its user configured."""
    await hub.add_worker()
    labels = {"zone": "a", "gpuward/gpu-model": "B200", "gpuward/rack": "7"}
    connection = await hub.connect(first=hello(shape=inventory([gpu("GPU-a")], labels=labels)))
    assert await hub.value("select labels from workers") == {"zone": "a", **OWN_LABELS}
    two = inventory([gpu("GPU-a"), replace(gpu("GPU-b"), model="A100", index=1)], labels=labels)
    await connection.send(InventoryChanged(inventory=two))

    async def written() -> bool:
        found = await hub.value("select labels from workers")
        return bool(found["gpuward/gpu-count"] == "2" and "gpuward/gpu-model" not in found)

    await eventually(written, "the labels follow the GPUs")


async def test_a_hello_raises_the_session_and_stores_the_facts(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    shape = inventory([gpu("GPU-a")], labels={"zone": "a"})
    connection = await hub.connect(first=hello(shape=shape, advertise="gpu-1.example:7000"))
    assert connection.welcome is not None
    assert (connection.welcome.worker, connection.welcome.session, connection.welcome.proxy_secret) == (
        "gpu-1",
        1,
        "proxy",
    )
    row = await hub.one("select * from workers where id = $1::uuid", worker)
    assert (row["session"], row["os"], row["labels"], row["proxy_address"]) == (
        1,
        "linux",
        {"zone": "a", **OWN_LABELS},
        "gpu-1.example:7000",
    )
    assert row["gpus_known"]
    assert row["reported_at"] is not None
    devices = await hub.value("select array_agg(uuid order by uuid) from devices")
    assert devices == ["GPU-a", f"host-{worker}"]
    assert await hub.value("select connected and session = 1 from worker_liveness")
    again = await hub.connect(first=hello(shape=shape))
    assert again.welcome is not None
    assert again.welcome.session == 2
    assert await hub.value("select proxy_address from workers") == "127.0.0.1:7070"


async def test_a_second_connection_supersedes_the_first(hub: HubUnderTest) -> None:
    await hub.add_worker()
    first = await hub.connect()
    second = await hub.connect()
    said = await first.end()
    assert said is not None
    assert not said.final
    assert "newer connection" in said.message
    await second.beat()
    assert hub.hub.connected() == 1
    # The end of the old one must not count as the worker's.
    await eventually(
        lambda: hub.value("select connected and session = 2 from worker_liveness"), "the second is written"
    )


async def test_unknown_and_deleted_workers_are_refused_for_good(hub: HubUnderTest) -> None:
    await hub.add_worker()
    async with hub.session.get(hub.url + CONNECT_PATH) as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["code"] == "unauthenticated"
    with pytest.raises(aiohttp.WSServerHandshakeError) as unknown:
        await hub.dial("unknown")
    assert unknown.value.status == 401
    await hub.execute("update workers set deleted_at = now()")
    deleted = await hub.dial("gpu-1")
    said = await deleted.end()
    assert said is not None
    assert said.final


async def test_a_worker_deleted_while_connected_is_cut(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    connection = await hub.connect()
    await hub.execute("update workers set deleted_at = now()")
    hub.hub.wake("worker", worker)
    said = await connection.end()
    assert said is not None
    assert "deleted" in said.message


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ("{", "JSON"),
        ('{"type": "dance"}', "type"),
        ('{"type": "heartbeat", "seq": 1, "gpus": null}', "must be the first message"),
        (msgspec.json.encode(hello([gpu("GPU-a"), gpu("GPU-a")])).decode(), "twice"),
        (msgspec.json.encode(hello([gpu("0")])).decode(), "gpus[0].uuid: expected `str` matching"),
        (msgspec.json.encode(hello(advertise="http://gpu-1/")).decode(), "advertise"),
        (msgspec.json.encode(hello(proxy_port=70_000)).decode(), "proxy_port"),
        (msgspec.json.encode(hello(processes=[process("i", epoch=2**40)])).decode(), "epoch"),
    ],
)
async def test_a_malformed_first_message_is_answered_and_recorded(hub: HubUnderTest, raw: str, named: str) -> None:
    await hub.add_worker()
    connection = await hub.dial()
    await connection.send(raw)
    said = await connection.next()
    assert isinstance(said, Rejected)
    assert named in said.message
    assert not said.final
    assert named in await hub.value("select message from events")
    assert await hub.value("select session from workers") == 0


async def test_a_malformed_later_message_ends_only_its_connection(hub: HubUnderTest) -> None:
    await hub.add_worker("gpu-1")
    await hub.add_worker("gpu-2")
    good = await hub.connect("gpu-2")
    bad = await hub.connect("gpu-1")
    await bad.send('{"type": "process", "instance": "i"}')
    said = await bad.end()
    assert said is not None
    assert "epoch" in said.message
    await good.send(process("nothing", "exited", seq=7))
    await good.ack(7)


async def test_missing_gpus_stay_claimed_and_become_unhealthy(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await hub.connect(first=hello([gpu("GPU-a"), gpu("GPU-b")]))
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="running", epoch=1)
    await claim(hub.database, "GPU-b", "d-1", 1024)
    connection = await hub.connect(first=hello([gpu("GPU-a")]))
    row = await hub.one("select present, health, health_reason, claims from devices where uuid = 'GPU-b'")
    assert tuple(row) == (False, "unhealthy", "missing", 1)
    assert await hub.value("select count(*) from events where reason = 'gpu_missing'") == 1
    await connection.beat([gpu("GPU-a"), gpu("GPU-b")])
    await eventually(
        lambda: hub.value("select present and health = 'ok' from devices where uuid = 'GPU-b'"), "GPU-b is back"
    )


def numbered(*uuids: str) -> list[ReportedGpu]:
    return [replace(gpu(uuid), index=n) for n, uuid in enumerate(uuids)]


async def test_a_renumbered_gpu_is_known_by_its_uuid(hub: HubUnderTest) -> None:
    """N6: claims stay with the GPU, whatever its index; claims of a missing GPU never move to another."""
    await hub.add_worker()
    await hub.connect(first=hello(numbered("GPU-a", "GPU-b", "GPU-c")))
    uid = await add_deployment(hub.database, "d")
    for name in ("a", "c"):
        await add_instance(hub.database, uid, f"d-{name}", phase="running", epoch=1)
        await claim(hub.database, f"GPU-{name}", f"d-{name}", 1024)
    await hub.connect(first=hello(numbered("GPU-c", "GPU-b")))
    found = await hub.database.pool.fetch(
        """select d.uuid, d.index, d.present, c.instance_id
             from devices d left join claims c on c.device = d.uuid where d.kind = 'gpu' order by d.uuid"""
    )
    assert [tuple(row) for row in found] == [
        ("GPU-a", 0, False, "d-a"),
        ("GPU-b", 1, True, None),
        ("GPU-c", 0, True, "d-c"),
    ]


async def test_unreadable_gpus_are_unknown_and_not_missing(hub: HubUnderTest) -> None:
    """N7: an unreadable inventory is not an empty one; placement and eviction wait for it."""
    await hub.add_worker()
    await hub.connect(first=hello([gpu("GPU-a")]))
    connection = await hub.connect(first=hello(None))
    row = await hub.one("select present, health from devices where uuid = 'GPU-a'")
    assert tuple(row) == (True, "unknown")
    assert not await hub.value("select gpus_known from workers")
    await connection.send(InventoryChanged(inventory=inventory([gpu("GPU-a")])))
    await eventually(lambda: hub.value("select health = 'ok' from devices where uuid = 'GPU-a'"), "GPU-a is known")
    assert await hub.value("select gpus_known from workers")


async def test_less_memory_is_accepted_and_never_breaks_the_ledger(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await hub.connect(first=hello([gpu("GPU-a", 80)]))
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="running", epoch=1)
    await claim(hub.database, "GPU-a", "d-1", 80 * GIB, exclusive=True)
    connection = await hub.connect(first=hello([gpu("GPU-a", 70)]))
    row = await hub.one("select memory_mib, reported_mib, health from devices where uuid = 'GPU-a'")
    assert tuple(row) == (80 * GIB, 70 * GIB, "unhealthy")
    await hub.execute("delete from claims")
    await eventually(
        lambda: hub.value("select memory_mib = $1 and health = 'ok' from devices where uuid = 'GPU-a'", 70 * GIB),
        "the smaller size applies once nothing is claimed",
    )
    await connection.beat([gpu("GPU-a", 90)])
    await eventually(
        lambda: hub.value("select memory_mib = $1 from devices where uuid = 'GPU-a'", 90 * GIB),
        "the larger size applies",
    )


async def test_a_gpu_changes_its_worker_only_where_nothing_can_run_on_it(hub: HubUnderTest) -> None:
    first = await hub.add_worker("gpu-1")
    second = await hub.add_worker("gpu-2")
    one = await hub.connect("gpu-1", hello([gpu("GPU-a")]))
    await hub.execute("update workers set phase = 'ready' where name = 'gpu-1'")
    await hub.connect("gpu-2", hello([gpu("GPU-a")]))
    owner = "select worker_id::text from devices where uuid = 'GPU-a'"
    assert await hub.value(owner) == first
    assert await hub.value("select count(*) from events where reason = 'gpu_held_elsewhere'") == 1
    await one.drop()
    await hub.execute("update workers set phase = 'lost' where name = 'gpu-1'")
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="unreachable", epoch=1)
    await claim(hub.database, "GPU-a", "d-1", 1024)
    await hub.connect("gpu-2", hello([gpu("GPU-a")]))
    assert await hub.value(owner) == first, "a claimed GPU keeps its worker"
    await hub.execute("delete from claims")
    await hub.connect("gpu-2", hello([gpu("GPU-a")]))
    assert await hub.value(owner) == second


async def test_a_reboot_makes_an_event(hub: HubUnderTest) -> None:
    await hub.add_worker()
    first = await hub.connect(first=hello(boot_id="one"))
    await first.drop()
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    await hub.connect(first=hello(boot_id="two"))
    assert await hub.value("select array_agg(reason order by id) from events") == ["worker_rebooted"]


async def test_a_goodbye_is_written(hub: HubUnderTest) -> None:
    await hub.add_worker()
    connection = await hub.connect()
    await connection.send('{"type": "goodbye"}')
    await connection.socket.close()
    await eventually(lambda: hub.value("select clean and not connected from worker_liveness"), "the goodbye is written")
    again = await hub.connect()
    assert await hub.value("select connected and not clean from worker_liveness")
    await again.drop()


@pytest.mark.parametrize("says", ["goodbye", "refusal"])
async def test_an_agent_that_shuts_down_is_known_at_once_and_its_reports_still_count(
    hub: HubUnderTest, says: str
) -> None:
    """One of an earlier version says goodbye at its end, but refuses starts before."""
    worker = await hub.add_worker()
    connection = await hub.connect(first=hello([gpu("GPU-a")]))
    uid = await add_deployment(hub.database, "d")
    instance = await add_instance(hub.database, uid, "d-1", phase="running", epoch=1)
    await claim(hub.database, "GPU-a", instance, 1024)
    if says == "goodbye":
        await connection.send('{"type": "goodbye"}')
    else:
        await connection.send(CommandResult(command_id=99, outcome="refused", code="shutting_down", message=""))
    await eventually(lambda: hub.value("select clean and connected from worker_liveness"), "it is known")
    await connection.send(process(instance, "exited", reason="agent_stopped", exit_code=-15))
    ended = "select bool_or(reason = 'agent_stopped') from processes where worker_id = $1"
    await eventually(lambda: hub.value(ended, worker), "its report counts")


async def test_a_dropped_connection_is_written_but_the_hubs_own_end_is_not(hub: HubUnderTest) -> None:
    await hub.add_worker("gpu-1")
    await hub.add_worker("gpu-2")
    one = await hub.connect("gpu-1")
    two = await hub.connect("gpu-2")
    await one.drop()
    connected = """select array_agg(w.name order by w.name)
                     from worker_liveness l join workers w on w.id = l.worker_id where l.connected"""
    await eventually(lambda: _equals(hub, connected, ["gpu-2"]), "the drop is written")
    await hub.hub.close()
    said = await two.end()
    assert said is not None
    assert "shutting down" in said.message
    before = hub.hub.healthy_for_s()
    await eventually(lambda: _written_again(hub, before), "liveness is written once more")
    assert await hub.value(connected) == ["gpu-2"], "the hub's end does not count"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await hub.dial("gpu-1")
    assert refused.value.status == 503


async def _written_again(hub: HubUnderTest, before: float) -> bool:
    return hub.hub._liveness._last_write - hub.hub._liveness._healthy_since > before + 0.1


async def _equals(hub: HubUnderTest, query: str, wanted: object) -> bool:
    return bool(await hub.value(query) == wanted)


async def test_a_join_token_is_exchanged_and_guesses_are_limited(hub: HubUnderTest) -> None:
    digest = hashlib.sha256(b"good").digest()
    await hub.execute(
        """insert into join_tokens (id, hash, expires_at) values (gen_random_uuid(), $1, now() + interval '1 hour')""",
        digest,
    )
    join = hub.url + "/api/v1/join"
    async with hub.session.post(join, json={"token": "good", "name": "UPPER"}) as answer:
        assert answer.status == 400
        assert "name" in (await answer.json())["error"]["message"]
    async with hub.session.post(join, json={"token": "good", "name": "gpu-9"}) as answer:
        assert answer.status == 200
        credential = (await answer.json())["credential"]
    headers = {"Authorization": f"Bearer {credential}"}
    async with hub.session.ws_connect(hub.url + CONNECT_PATH, headers=headers) as socket:
        await socket.send_str(msgspec.json.encode(hello()).decode())
        assert (await socket.receive_json())["worker"] == "gpu-9"
    statuses = []
    for _ in range(30):
        async with hub.session.post(join, json={"token": "guess", "name": "gpu-8"}) as answer:
            statuses.append(answer.status)
    assert statuses[0] == 401
    assert statuses[-1] == 429


async def test_a_wrong_credential_is_one_log_line_a_minute(hub: HubUnderTest) -> None:
    """Eight agents with it try again and again."""

    async def attempt(number: int) -> None:
        headers = {"Authorization": f"Bearer wrong-{number}"}
        async with hub.session.get(hub.url + CONNECT_PATH, headers=headers) as answer:
            assert (answer.status, "unknown" in await answer.text()) == (401, True)

    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            await asyncio.gather(*map(attempt, range(8)))
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == ["handshake refused"]


async def test_a_slow_join_is_the_client_s_fault(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of ours would be logged."""
    monkeypatch.setattr(join, "BODY_LIMIT_S", 0.3)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    with structlog.testing.capture_logs() as logs:
        async with hub.session.post(hub.url + JOIN_PATH, data=slow()) as answer:
            assert answer.status == 408
    assert logs == []
