"""A ledger that lost commits: agents name terms and sessions that it does not hold."""

from typing import Any

import pytest
from msgspec.structs import replace

from controller.decide.lost_history import MAX_LEAP, ReportedTerm, proof_of
from controller.hub.lost_history import CUT
from rig.agent_messages import hello, process
from schemas.wire import AttestedTerm
from support.database.ledger import add_deployment, add_instance
from support.leading.served_hub import HubUnderTest, eventually

LEASE = "select term, cut_at is not null as cut, renewed_at = '-infinity' as free from lease"


async def lead(hub: HubUnderTest, term: int) -> None:
    await hub.execute("update lease set term = $1, holder = 'one', renewed_at = clock_timestamp()", term)


async def told(hub: HubUnderTest, name: str, term: int, session: int) -> dict[str, Any]:
    """What an agent says that was told this."""
    worker, key = await hub.one("select w.id, l.receipt_key from workers w, lease l where w.name = $1", name)
    proof = proof_of(key, str(worker), ReportedTerm(term, session))
    return {
        "highest_term": term,
        "highest_session": session,
        "told": AttestedTerm(term=term, session=session, proof=proof),
    }


async def joined_before_proofs(hub: HubUnderTest, name: str = "gpu-1") -> None:
    await hub.add_worker(name)
    await hub.execute("update workers set unproven = true where name = $1", name)


async def test_the_lease_goes_above_the_term_that_an_agent_was_told(hub: HubUnderTest) -> None:
    """One hello is enough: its welcome names a term that the agent obeys, and the lease is free for the next one."""
    await hub.add_worker()
    await lead(hub, 3)
    connection = await hub.connect(first=hello(**await told(hub, "gpu-1", 9, 4)))
    assert connection.welcome is not None
    assert (connection.welcome.term, connection.welcome.session) == (10, 5)
    assert tuple(await hub.one(LEASE)) == (10, True, True)
    assert await hub.value("select array_agg(reason) from events") == ["history_lost"]


async def test_a_session_that_the_ledger_lost_is_passed_too(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await lead(hub, 3)
    connection = await hub.connect(first=hello(**await told(hub, "gpu-1", 3, 7)))
    assert connection.welcome is not None
    assert (connection.welcome.term, connection.welcome.session) == (4, 8)


async def test_a_welcome_proves_what_it_tells_and_so_does_the_one_before_a_later_terms_command(
    hub: HubUnderTest,
) -> None:
    worker = await hub.add_worker()
    await lead(hub, 3)
    connection = await hub.connect(first=hello(protocol=5))
    async with hub.database.transaction() as takeover:
        await takeover.execute("select 1 from lease for update")  # waits for a dispatch that is under way
        await takeover.execute("update lease set term = 6")
    await add_instance(hub.database, await add_deployment(hub.database, "d"), "i", phase="starting", epoch=1)
    await hub.order(worker, "i", "stop")
    assert (await connection.command()).term == 6
    last = connection.welcome
    assert last is not None
    assert (last.term, last.session) == (6, 1)
    await hub.execute("update lease set term = 2")
    await hub.execute("update workers set session = 0")
    shown = AttestedTerm(term=last.term, session=last.session, proof=last.proof)
    await hub.connect(first=hello(highest_term=6, highest_session=1, told=shown))
    assert await hub.value("select term from lease") == 7


@pytest.mark.parametrize("forged", ["none", "another worker's", "of lower numbers", "not a proof"])
async def test_what_an_agent_cannot_prove_changes_no_leader(hub: HubUnderTest, forged: str) -> None:
    await hub.add_worker("gpu-1")
    await hub.add_worker("gpu-2")
    await lead(hub, 3)
    said = await told(hub, "gpu-2" if forged == "another worker's" else "gpu-1", 9, 4)
    shown = said["told"]
    match forged:
        case "none":
            said["told"] = None
        case "of lower numbers":
            said["told"] = replace((await told(hub, "gpu-1", 2, 1))["told"], term=9)
        case "not a proof":
            said["told"] = replace(shown, proof="\u00e9" * 64)
    await hub.connect(first=hello(**said))
    assert tuple(await hub.one(LEASE)) == (3, False, False)
    assert await hub.value("select array_agg(reason) from events") == ["term_ahead"]


async def test_the_first_proof_ends_the_time_in_which_an_older_agent_is_believed_without(hub: HubUnderTest) -> None:
    await joined_before_proofs(hub)
    await lead(hub, 3)
    connection = await hub.connect()
    assert connection.welcome is not None
    assert await hub.value("select unproven from workers")
    shown = AttestedTerm(term=3, session=1, proof=connection.welcome.proof)
    await hub.connect(first=hello(highest_term=3, highest_session=1, told=shown))
    assert not await hub.value("select unproven from workers")
    await hub.connect(first=hello(highest_term=9, highest_session=2))
    assert await hub.value("select term from lease") == 3


async def test_an_agent_of_this_history_changes_nothing(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await lead(hub, 3)
    await hub.connect(first=hello(highest_term=3))
    again = await hub.connect(first=hello(highest_term=3, highest_session=1))
    assert again.welcome is not None
    assert (again.welcome.term, again.welcome.session) == (3, 2)
    assert tuple(await hub.one(LEASE)) == (3, False, False)


async def test_all_other_agents_tell_anew_what_they_hold(hub: HubUnderTest) -> None:
    await hub.add_worker("gpu-1")
    await hub.add_worker("gpu-2")
    await lead(hub, 3)
    other = await hub.connect("gpu-2")
    first = await hub.connect("gpu-1", hello(**await told(hub, "gpu-1", 9, 0)))
    hub.hub.wake("cut", None)
    said = await other.end()
    assert said is not None
    assert (said.message, said.final) == (CUT, False)
    again = await hub.connect("gpu-2", hello(highest_term=3, highest_session=1))
    hub.hub.wake("*", None)
    for connection in (first, again):
        await connection.beat()
    both = "select count(*) = 2 from worker_liveness where connected"
    await eventually(lambda: hub.value(both), "both stay connected")


@pytest.mark.parametrize("named", [{"highest_term": 4 + MAX_LEAP}, {"highest_session": 2 + MAX_LEAP}])
async def test_what_no_history_can_have_is_not_believed(hub: HubUnderTest, named: dict[str, int]) -> None:
    await joined_before_proofs(hub)
    await lead(hub, 3)
    await hub.connect(first=hello(**named))  # type: ignore[arg-type]  # these are numbers
    assert tuple(await hub.one(LEASE)) == (3, False, False)


async def test_one_older_agent_does_not_end_term_after_term(hub: HubUnderTest) -> None:
    await joined_before_proofs(hub)
    await lead(hub, 3)
    first = await hub.connect(first=hello(highest_term=9))
    await first.drop()
    await hub.connect(first=hello(highest_term=99, highest_session=1))
    assert await hub.value("select term from lease") == 10
    assert await hub.value("select array_agg(reason order by id) from events") == ["history_lost", "term_ahead"]
    await hub.execute("update workers set above_at = clock_timestamp() - interval '1 hour'")
    await hub.connect(first=hello(highest_term=99, highest_session=2))
    assert await hub.value("select term from lease") == 100


async def test_the_next_start_is_above_every_epoch_that_its_agent_has_seen(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    other = await hub.add_worker("gpu-2")
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="pending", epoch=2)
    await hub.order(worker, "d-1", epoch=2)
    assert other
    seen = "select greatest(epoch, seen_epoch) from instances"
    await hub.connect("gpu-2", hello(processes=[process("d-1", epoch=50)]))
    assert await hub.value(seen) == 2, "to this one it was never sent"
    await hub.connect(first=hello(processes=[process("d-1", "exited", epoch=6)]))
    assert await hub.value(seen) == 6
    await hub.connect(first=hello(processes=[process("d-1", "exited", epoch=2**31 - 1)]))
    assert await hub.value(seen) == 6, "no history can have that"
