"""After a loss of commits: what an agent tells of processes that the ledger does not know is kept and decided."""

import uuid

from controller.domain.start_receipts import seal
from controller.runtime.outcome import Requeue
from rig.agent_messages import process
from support.database.ledger import add_instance
from support.leading.lost_ledger import CLAIMS, FOUND, GPU, PHASES, lost_ledger
from support.leading.served_hub import HubUnderTest

ENDED = "select jsonb_object_agg(instance_id, state) from processes"


async def test_what_runs_and_is_wanted_is_taken_back(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    connection = await ledger.tells([process("d-new")], [await ledger.receipt(worker, uid, "d-new")])
    assert await hub.value(FOUND) == ["d-new"]
    ledger.told = False
    assert isinstance(await ledger.step(), Requeue), "other agents have not told yet"
    assert (await hub.value(FOUND), ledger.settled) == (["d-new"], 0)
    ledger.told = True
    await ledger.step()
    assert (await hub.value(FOUND), ledger.settled) == (None, 1)
    assert await hub.value(PHASES) == {"d-new": "running"}
    assert await hub.value(CLAIMS) == [f"{GPU} d-new 1", f"host-{worker} d-new 1"]
    assert await hub.value("select settled_at >= cut_at from lease")
    await connection.send(process("d-new", "unhealthy", seq=2))
    await connection.ack(2)
    assert await hub.value(ENDED) == {"d-new": "unhealthy"}
    assert not connection.commands, "nothing is stopped"
    assert await hub.value("select array_agg(reason order by id) from events") == ["adopted"]


async def test_what_is_not_wanted_is_stopped_once_that_is_decided(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    receipts = [await ledger.receipt(worker, uid, name, gib=30) for name in ("d-1", "d-2")]
    connection = await ledger.tells([process("d-1", seq=1), process("d-2", seq=2)], receipts)
    await connection.send(process("d-2", seq=3, message="still here"))
    await connection.ack(3)
    assert not connection.commands, "it is decided later"
    await ledger.step()
    stop = await connection.command()
    assert (stop.verb, stop.instance) == ("stop", "d-2")
    await connection.send(process("d-2", "exited", seq=4))
    await connection.ack(4)
    assert await hub.value(PHASES) == {"d-1": "running"}


async def test_an_instance_is_taken_back_under_its_later_epoch(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    await add_instance(hub.database, uid, "d-1")
    await ledger.tells([process("d-1", epoch=4)], [await ledger.receipt(worker, uid, "d-1", epoch=4)])
    await ledger.step()
    assert await hub.value(PHASES) == {"d-1": "running"}
    assert await hub.value("select epoch from instances") == 4


async def test_a_receipt_that_no_controller_sealed_is_worth_nothing(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    other = await hub.add_worker("gpu-2")
    good = await ledger.receipt(worker, uid, "d-1")
    forged = [good[:-4] + "AAA=", good.replace(".", "", 1), "x", seal({"worker_id": worker}, b""), ""]
    of_another = await ledger.receipt(other, uid, "d-1")
    connection = await ledger.tells([process("d-1")], [*forged, of_another])
    stop = await connection.command()
    assert (stop.verb, stop.instance) == ("stop", "d-1")
    assert await hub.value(FOUND) is None


async def test_without_a_loss_receipts_change_nothing(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    await hub.execute("update lease set cut_at = null")
    connection = await ledger.tells([process("d-1")], [await ledger.receipt(worker, uid, "d-1")])
    assert (await connection.command()).verb == "stop"
    assert await hub.value(FOUND) is None


async def test_an_agent_that_comes_late_is_heard_once(hub: HubUnderTest) -> None:
    """All others have told and the leader places; its first hello since the loss counts, later ones do not."""
    ledger, worker, uid = await lost_ledger(hub, settled=True)
    receipt = await ledger.receipt(worker, uid, "d-1")
    await ledger.tells([process("d-1")], [receipt])
    again = await ledger.tells([process("d-1")], [receipt], sessions=1)
    assert await hub.value(FOUND) == ["d-1"], "it is not decided yet"
    await ledger.step()
    assert await hub.value(PHASES) == {"d-1": "running"}
    assert not again.commands
    later = await ledger.receipt(worker, uid, "d-2", gib=1)
    stray = await ledger.tells([process("d-1"), process("d-2", seq=2)], [receipt, later], sessions=2)
    assert (await stray.command()).instance == "d-2"


async def test_a_process_that_ends_before_it_is_decided_is_forgotten(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    connection = await ledger.tells([process("d-1")], [await ledger.receipt(worker, uid, "d-1")])
    await connection.send(process("d-1", "exited", seq=2))
    await connection.ack(2)
    assert await hub.value(FOUND) is None
    await ledger.step()
    assert await hub.value(PHASES) == {}


async def test_nothing_is_started_before_agents_have_told(hub: HubUnderTest) -> None:
    ledger, worker, uid = await lost_ledger(hub)
    connection = await ledger.tells([], [])
    await add_instance(hub.database, uid, "d-1", phase="scheduled", epoch=1)
    await hub.execute(
        "insert into claims (device, instance_id, epoch, memory_mib) values ($1, 'd-1', 1, 0)", f"host-{worker}"
    )
    await hub.order(worker, "d-1")
    stop = await hub.order(worker, "d-1", "stop", epoch=9)
    assert (await connection.command()).command_id == stop, "stops go on"
    assert await hub.value("select sent_at is null from commands where verb = 'start'")
    await ledger.step()
    hub.hub.wake("command", None)
    start = await connection.command()
    assert (start.verb, start.start is not None and bool(start.start.receipt)) == ("start", True)


async def test_a_hub_that_missed_the_decision_asks_again(hub: HubUnderTest) -> None:
    ledger, worker, _ = await lost_ledger(hub)
    gone = await ledger.receipt(worker, str(uuid.UUID(int=7)), "d-1")
    connection = await ledger.tells([process("d-1")], [gone])
    await ledger.step(hint="*")
    assert (await connection.command()).verb == "stop"
    assert await hub.value("select message like '%does not exist' from events where reason = 'not_adopted'")
