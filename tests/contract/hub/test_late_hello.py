"""A hello that is written late, after the agent's next one, ends no process that started in between."""

import pytest

from controller.hub import handshake
from controller.hub.admission import Identification
from controller.hub.handshake import HandshakeRefusedError
from rig.agent_messages import gpu, hello, process
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually


async def test_a_late_hello_does_not_end_what_started_after_it(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    database = hub.database
    late = hello([gpu("GPU-a")], report_seq=7)
    connection = await hub.connect(first=hello([gpu("GPU-a")], report_seq=7))
    uid = await add_deployment(database, "d", resources={"gpus": 1})
    await add_instance(database, uid, "d-1", phase="starting", epoch=1)
    await claim(database, "GPU-a", "d-1", 80 * 1024, exclusive=True)
    await connection.send(process("d-1", "running", seq=8))
    await eventually(lambda: hub.value("select state = 'running' from processes"), "the report is written")
    identity = await Identification(database).identify("secret-gpu-1")
    assert identity is not None
    assert identity.id == worker
    await handshake.accept(database, identity, late, "127.0.0.1")
    assert await hub.value("select state from processes") == "running"


async def test_a_late_hello_after_a_loss_of_commits_ends_no_start_that_was_accepted_since_it_was_made(
    hub: HubUnderTest,
) -> None:
    worker = await hub.add_worker()
    database = hub.database
    late = hello([gpu("GPU-a")])
    identity = await Identification(database).identify("secret-gpu-1")
    assert identity is not None
    await hub.connect(first=late)
    uid = await add_deployment(database, "d", resources={"gpus": 1})
    await add_instance(database, uid, "d-1", phase="scheduled", epoch=1)
    await claim(database, "GPU-a", "d-1", 80 * 1024, exclusive=True)
    await hub.execute(
        """insert into commands (worker_id, instance_id, epoch, rank, verb, payload, state)
           values ($1, 'd-1', 1, 0, 'start', '{}', 'accepted')""",
        worker,
    )
    await hub.execute("update lease set cut_at = clock_timestamp()")
    with pytest.raises(HandshakeRefusedError, match="connect again"):
        await handshake.accept(database, identity, late, "127.0.0.1")
    assert await hub.value("select count(*) from processes") == 0, "its report may be on its way"
    identity = await Identification(database).identify("secret-gpu-1")
    assert identity is not None
    await handshake.accept(database, identity, late, "127.0.0.1")
    assert await hub.value("select state || reason from processes") == "exitedgone"


async def test_a_late_hello_of_before_a_boot_ends_nothing_that_was_started_since(hub: HubUnderTest) -> None:
    await hub.add_worker()
    database = hub.database
    await (await hub.connect(first=hello([gpu("GPU-a")], boot_id="first"))).drop()
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    identity = await Identification(database).identify("secret-gpu-1")
    assert identity is not None
    connection = await hub.connect(first=hello([gpu("GPU-a")], boot_id="second"))
    uid = await add_deployment(database, "d", resources={"gpus": 1})
    await add_instance(database, uid, "d-1", phase="starting", epoch=1)
    await claim(database, "GPU-a", "d-1", 80 * 1024, exclusive=True)
    await connection.send(process("d-1", "running", seq=8))
    await eventually(lambda: hub.value("select state = 'running' from processes"), "the report is written")
    await connection.drop()
    await eventually(lambda: hub.value("select not connected from worker_liveness"), "the drop is written")
    with pytest.raises(HandshakeRefusedError, match="connect again"):
        await handshake.accept(database, identity, hello([gpu("GPU-a")], boot_id="first", report_seq=9), "127.0.0.1")
    assert await hub.value("select state from processes") == "running"
    assert await hub.value("select boot_id from workers") == "second"


async def test_a_process_that_the_agent_has_reported_and_lost_is_gone(hub: HubUnderTest) -> None:
    await hub.add_worker()
    database = hub.database
    connection = await hub.connect(first=hello([gpu("GPU-a")]))
    uid = await add_deployment(database, "d", resources={"gpus": 1})
    await add_instance(database, uid, "d-1", phase="starting", epoch=1)
    await claim(database, "GPU-a", "d-1", 80 * 1024, exclusive=True)
    await connection.send(process("d-1", "running", seq=8))
    await eventually(lambda: hub.value("select state = 'running' from processes"), "the report is written")
    await hub.connect(first=hello([gpu("GPU-a")], report_seq=8))
    assert await hub.value("select state || reason from processes") == "exitedgone"
