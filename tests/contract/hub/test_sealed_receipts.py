"""Receipts and proofs while the key that makes them is sealed, and while no key of this controller opens it."""

import uuid
from collections.abc import AsyncIterator

import pytest

from controller.decide.lost_history import ReportedTerm, proof_of
from controller.domain.start_receipts import open_sealed
from controller.store.access.proxy_secrets import PURPOSE
from controller.store.access.receipt_key import seal_receipt_key
from controller.store.access.secret_keys import SecretKeys, new_key, parse_keys
from controller.store.core.database import Database
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, process
from schemas.wire import AttestedTerm
from support.database.ledger import add_deployment, add_instance
from support.leading.lost_ledger import CLAIMS, FOUND, GPU, PHASES, LostLedger
from support.leading.served_hub import HubUnderTest, serving

KEY, OTHER = new_key(), new_key()


class Ring:
    """The keys of a controller, which a test takes away and puts back."""

    def __init__(self) -> None:
        self.texts = [KEY]
        self.keys = SecretKeys(lambda: parse_keys(",".join(self.texts)))

    def have(self, *texts: str) -> None:
        self.texts = [*texts]
        self.keys.reload()


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
async def hub(migrated: Database, ring: Ring) -> AsyncIterator[HubUnderTest]:
    async with serving(migrated, keys=ring.keys) as under_test:
        yield under_test


class SealedLedger(LostLedger):
    """One that lost commits, and whose key of receipts is sealed."""

    async def seal(self, ring: Ring) -> None:
        async with self.hub.database.transaction() as connection:
            await seal_receipt_key(connection, ring.keys)
        assert await self.hub.value("select receipt_key from lease") is None

    async def stopped(self, connection: AgentDouble) -> list[str]:
        """Which processes it was told to stop, once a report of one is through."""
        await connection.send(process("d-new", seq=9))
        await connection.ack(9)
        return [command.instance for command in connection.commands]


async def test_a_sealed_key_makes_receipts_that_hold(hub: HubUnderTest, ring: Ring) -> None:
    ledger = SealedLedger(hub)
    worker, uid, key = await hub.add_worker(), await add_deployment(hub.database, "d"), await ledger.key()
    await ledger.seal(ring)
    await add_instance(hub.database, uid, "d-1", phase="starting", epoch=1)
    connection = await hub.connect(first=hello([gpu(GPU)]))
    async with hub.database.transaction() as c:
        await c.execute(
            "insert into claims (device, instance_id, epoch, memory_mib, exclusive) values ($1, 'd-1', 1, 1024, false)",
            GPU,
        )
    await hub.order(worker, "d-1")
    start = (await connection.command()).start
    assert start is not None
    receipt = open_sealed(start.receipt, key)
    assert receipt is not None
    assert receipt["instance"] == "d-1"


async def test_what_has_a_receipt_that_cannot_be_read_is_not_stopped_and_is_taken_back_later(
    hub: HubUnderTest, ring: Ring
) -> None:
    ledger = SealedLedger(hub)
    await ledger.begin()
    worker, uid = await hub.add_worker(), await add_deployment(hub.database, "d")
    receipt = await ledger.receipt(worker, uid, "d-new")
    await ledger.seal(ring)
    ring.have(OTHER)
    running = [process("d-new", seq=1), process("stray", seq=2)]
    for sessions in range(2):
        connection = await ledger.tells(running, [receipt], sessions=sessions)
        assert (await connection.command()).instance == "stray", "it has none"
        await ledger.step()
        assert "d-new" not in await ledger.stopped(connection)
    assert (await hub.value(PHASES), await hub.value(FOUND)) == ({}, None)
    ring.have(OTHER, KEY)
    connection = await ledger.tells([process("d-new", seq=10)], [receipt], sessions=2)
    assert await hub.value(FOUND) == ["d-new"]
    await ledger.step()
    assert await hub.value(PHASES) == {"d-new": "running"}
    assert await hub.value(CLAIMS) == [f"{GPU} d-new 1", f"host-{worker} d-new 1"]
    assert not connection.commands


async def test_a_start_that_the_ledger_has_ended_is_stopped_whatever_its_receipt_says(
    hub: HubUnderTest, ring: Ring
) -> None:
    ledger = SealedLedger(hub)
    await ledger.begin()
    worker, uid = await hub.add_worker(), await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "d-1", phase="pending", epoch=1)
    await hub.order(worker, "d-1")
    receipt = await ledger.receipt(worker, uid, "d-1")
    await ledger.seal(ring)
    ring.have(OTHER)
    connection = await ledger.tells([process("d-1")], [receipt])
    assert (await connection.command()).instance == "d-1"


async def test_agents_are_obeyed_again_after_a_restore_without_the_key(hub: HubUnderTest, ring: Ring) -> None:
    """What an agent proves cannot be read then: it is believed as one that never had a proof."""
    ledger = SealedLedger(hub)
    worker, key = await hub.add_worker(), await ledger.key()
    await ledger.seal(ring)
    ring.have(OTHER)
    await hub.execute("update lease set term = 3, holder = 'one', renewed_at = clock_timestamp()")
    told = AttestedTerm(term=9, session=4, proof=proof_of(key, worker, ReportedTerm(9, 4)))
    connection = await hub.connect(first=hello(highest_term=9, highest_session=4, told=told))
    assert connection.welcome is not None
    assert (connection.welcome.term, connection.welcome.proof) == (10, "")
    assert connection.welcome.session == 5
    secret = connection.welcome.proxy_secret
    again = await hub.connect(first=hello(highest_term=10, highest_session=5))
    assert again.welcome is not None
    assert again.welcome.proxy_secret == secret


async def test_a_welcome_brings_the_secret_that_is_sealed(hub: HubUnderTest, ring: Ring) -> None:
    worker = await hub.add_worker()
    proxies = ring.keys.branch(PURPOSE)
    sealed = proxies.seal(f"\0proxy_secret\0{worker}", "sealed secret")
    await hub.execute("update workers set proxy_secret = null")
    await hub.execute(
        "insert into sealed_proxy_secrets (worker_id, sealed, key_id) values ($1, $2, $3)",
        uuid.UUID(worker), sealed, proxies.current,
    )  # fmt: skip
    connection = await hub.connect()
    assert connection.welcome is not None
    assert connection.welcome.proxy_secret == "sealed secret"


@pytest.mark.parametrize("forged", ["", "x", "e30.", "W10.", "bnVsbA.", "eyJpbnN0YW5jZSI6MX0.", "é."])
async def test_a_malformed_receipt_keeps_nothing_running(hub: HubUnderTest, ring: Ring, forged: str) -> None:
    ledger = SealedLedger(hub)
    await ledger.begin()
    await hub.add_worker()
    await ledger.seal(ring)
    ring.have(OTHER)
    connection = await ledger.tells([process("d-1")], [forged])
    assert (await connection.command()).instance == "d-1"
