"""The protocol of a connection, as the hub finds it: old agents, its like, and agents with none in common."""

from collections.abc import AsyncIterator

import orjson
import pytest

from contract.wire import protocol_3
from controller.store.core.database import Database
from controller.store.views.workers import workers_by_id
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, process
from schemas.wire import SPOKEN, Protocols, Rejected, Welcome, encode
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, serving, start_payload

OLD_HELLO = protocol_3.Hello.model_validate(
    {**orjson.loads(encode(hello([gpu("GPU-a")]), 3)), "protocol": 3}
).model_dump_json()


@pytest.fixture
async def later_hub(migrated: Database) -> AsyncIterator[HubUnderTest]:
    """A hub of a later version, which speaks protocols 7 and 8."""
    async with serving(migrated, Protocols(7, 8)) as under_test:
        yield under_test


async def raw(connection: AgentDouble) -> str:
    return (await connection.socket.receive(timeout=15)).data


async def test_an_old_agent_is_served_in_words_that_it_can_read(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="scheduled", epoch=1)
    await hub.connect(first=hello([gpu("GPU-a")]))
    await claim(hub.database, "GPU-a", "d-1", 1024)
    connection = await hub.dial()
    assert connection.socket.protocol is None
    await connection.send(OLD_HELLO)
    welcome = protocol_3.controller_message.validate_json(await raw(connection))
    assert isinstance(welcome, protocol_3.Welcome)
    await hub.order(worker, "d-1", payload=start_payload(argv=["{simulated_engine}", "--port", "1"]))
    command = protocol_3.controller_message.validate_json(await raw(connection))
    assert command.start.argv == ("{python}", "-m", "gpuward.agent.simulated_engine", "--port", "1")
    await connection.send(process("d-1", seq=3))
    ack = protocol_3.controller_message.validate_json(await raw(connection))
    assert ack.seq == 3
    assert await hub.value("select protocol from workers") == 3


async def test_an_agent_that_offers_protocols_gets_the_highest_common_one(hub: HubUnderTest) -> None:
    await hub.add_worker()
    connection = await hub.dial(offered=Protocols(3, 9))
    assert connection.socket.protocol == f"gpuward.v{SPOKEN.highest}"
    await connection.send(hello(protocol=SPOKEN.highest))
    assert isinstance(await connection.next(), Welcome)
    assert await hub.value("select protocol from workers") == SPOKEN.highest


@pytest.mark.parametrize(
    ("offered", "first", "named"),
    [
        (
            Protocols(3, 4),
            None,
            "the agent speaks 3 to 4, the controller speaks 7 to 8; install a newer",
        ),
        (
            Protocols(9, 11),
            None,
            "the agent speaks 9 to 11, the controller speaks 7 to 8; install a newer",
        ),
        (None, OLD_HELLO, "the agent speaks 3, the controller speaks 7 to 8; install a newer gpuward for the agent"),
        (None, '{"type": "hello", "protocol": 9, "new": {}}', "the agent speaks 9, the controller speaks 7 to 8"),
    ],
)
async def test_both_sides_are_named_where_no_protocol_is_common(
    later_hub: HubUnderTest,
    offered: Protocols | None,
    first: str | None,
    named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The agent is told, the log and the worker say so, and one event is written however often it dials."""
    worker = await later_hub.add_worker()
    for _ in range(3):
        connection = await later_hub.dial(offered=offered)
        if first is not None:
            await connection.send(first)
        said = await connection.next()
        assert isinstance(said, Rejected)
        assert named in said.message
        assert not said.final
    assert named in capsys.readouterr().out
    assert await later_hub.value("select array_agg(reason) from events") == ["no_common_protocol"]
    assert named in await later_hub.value("select message from events")
    async with later_hub.database.connection() as database:
        (view,) = await workers_by_id(database, [worker])
    (condition,) = view.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Compatible", "false", "no_common_protocol")
    assert named in condition.message
    assert await later_hub.value("select session from workers") == 0

    upgraded = await later_hub.dial(offered=Protocols(4, 7))
    await upgraded.send(hello(protocol=7))
    assert isinstance(await upgraded.next(), Welcome)
    assert await later_hub.value("select conditions from workers") == []
