"""Webhooks to a real receiver: signed, retried a limited number of times with one id, given up with an event."""

import ipaddress
from collections.abc import Sequence
from dataclasses import replace

import aiohttp
import pytest

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.domain.effects import StaleError
from controller.leader.webhooks import Network, Webhooks, WebhookSettings, sign
from controller.runtime.clock import SystemClock
from controller.store.core.database import Database
from controller.store.policies.webhooks import Delivery, read_due
from support.database.ledger import rows
from support.database.policy_ledger import STOP_IDLE, PolicyLedger, settle
from support.standins.webhook_receiver import Receiver, webhook_receiver

KEY = "a secret that signs"
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
AT_ONCE = WebhookSettings(attempts=3, wait_s=0.0, wait_max_s=0.0, try_s=0.3)


async def idle_with_webhook(db: Database, url: str) -> PolicyLedger:
    world = await PolicyLedger.make(db)
    await world.write("insert into secrets (name, value) values ('webhook', $1)", KEY)
    await world.deployment(utilization_policy={**STOP_IDLE, "webhook": url})
    await world.idle("d-0")
    await settle(await world.leader())
    return world


async def due(db: Database) -> list[Delivery]:
    async with db.connection() as connection:
        return await read_due(connection, but=(), limit=10)


async def deliver(
    db: Database,
    settings: WebhookSettings = AT_ONCE,
    may_reach: Sequence[Network] = LOOPBACK,
    redaction: Redaction = NOTHING_REDACTED,
) -> int:
    """Runs until nothing is due; returns the number of attempts."""
    term = (await rows(db, "select term from lease"))[0]["term"]
    webhooks, tries = (
        Webhooks(db, term, SystemClock(), settings, may_reach=may_reach, redaction=lambda: redaction),
        0,
    )
    async with webhooks.http() as http:
        while found := await due(db):
            for delivery in found:
                await webhooks.attempt(http, delivery)
                tries += 1
    return tries


async def kept(db: Database) -> dict[str, object]:
    (row,) = await rows(
        db, "select attempts, delivered, finished_at is not null as over, error from webhook_deliveries"
    )
    return row


def the_one(receiver: Receiver) -> str:
    (id_,) = {r.id for r in receiver.received}
    return id_


async def test_an_action_is_sent_once_and_signed(db: Database) -> None:
    async with webhook_receiver() as receiver:
        await idle_with_webhook(db, receiver.url)
        assert await deliver(db) == 1
    (received,) = receiver.received
    assert received.signed_with(KEY.encode())
    assert not received.signed_with(b"another")
    assert received.content["type"] == "policy_stop"
    assert received.content["data"]["deployment"] == "d"
    assert received.content["data"]["evidence"]["gpus"][0]["uuid"] == "GPU-gpu-1-0"
    assert await kept(db) == {"attempts": 1, "delivered": True, "over": True, "error": ""}


async def test_it_shows_no_value_of_a_secret(db: Database) -> None:
    async with webhook_receiver() as receiver:
        await idle_with_webhook(db, receiver.url)
        assert await deliver(db, redaction=Redaction({"odd": "GPU-gpu-1-0"})) == 1
    (received,) = receiver.received
    assert received.signed_with(KEY.encode()), "what is sent is what is signed"
    assert received.content["data"]["evidence"]["gpus"][0]["uuid"] == "[redacted]"


async def test_it_is_not_signed_with_a_secret_that_is_for_others_by_now(db: Database) -> None:
    async with webhook_receiver() as receiver:
        world = await idle_with_webhook(db, receiver.url)
        await world.write("update secrets set deployments = '{team-a-*}' where name = 'webhook'")
        assert await deliver(db) == 3
        assert receiver.received == []
    assert "secret 'webhook' is for deployments named team-a-*" in str((await kept(db))["error"])


async def test_it_is_retried_with_the_same_id(db: Database) -> None:
    async with webhook_receiver([500, 429]) as receiver:
        await idle_with_webhook(db, receiver.url)
        assert await deliver(db) == 3
    assert the_one(receiver)
    assert await kept(db) == {"attempts": 3, "delivered": True, "over": True, "error": ""}


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (302, 3), (410, 1)])
async def test_it_is_given_up_with_an_event(db: Database, status: int, tries: int) -> None:
    async with webhook_receiver([status] * 9) as receiver:
        world = await idle_with_webhook(db, receiver.url)
        assert await deliver(db) == len(receiver.received) == tries
    assert await kept(db) == {
        "attempts": tries, "delivered": False, "over": True, "error": f"the receiver answered {status}",
    }  # fmt: skip
    assert await world.events("webhook_") == ["webhook_failed"]


async def test_an_absent_receiver_is_a_failed_attempt(db: Database) -> None:
    await idle_with_webhook(db, "http://127.0.0.1:9/hook")
    assert await deliver(db) == 3
    assert "127.0.0.1:9" in str((await kept(db))["error"])


async def test_a_missing_secret_is_named(db: Database) -> None:
    async with webhook_receiver() as receiver:
        world = await idle_with_webhook(db, receiver.url)
        await world.write("delete from secrets")
        assert await deliver(db) == 3
    assert receiver.received == []
    assert "gpuward secret set webhook" in str((await kept(db))["error"])


async def test_the_delay_between_attempts_grows(db: Database) -> None:
    """The row stores when the next one is due, so a new leader waits just as long."""
    settings = replace(AT_ONCE, wait_s=100.0, wait_max_s=150.0)
    async with webhook_receiver([500, 500]) as receiver:
        world = await idle_with_webhook(db, receiver.url)
        waits = []
        for _ in range(2):
            assert await deliver(db, settings) == 1
            row = await rows(
                db, "select extract(epoch from not_before - clock_timestamp()) as s from webhook_deliveries"
            )
            waits.append(float(row[0]["s"]))
            await world.write("update webhook_deliveries set not_before = now()")
        assert 80 <= waits[0] <= 125
        assert 130 <= waits[1] <= 175


async def test_a_former_leader_records_nothing(db: Database) -> None:
    async with webhook_receiver() as receiver:
        await idle_with_webhook(db, receiver.url)
        async with aiohttp.ClientSession() as http:
            with pytest.raises(StaleError):
                await Webhooks(db, 0, SystemClock(), AT_ONCE).attempt(http, (await due(db))[0])
        assert (await kept(db))["over"] is False
        assert await deliver(db) == 1
    assert the_one(receiver), "the receiver knows by the id that it has it already"


def test_a_signature_follows_the_standard() -> None:
    """The example in the standard's documentation."""
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    payload = '{"test": 2432232314}'
    assert sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, payload) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]", "2130706433"])
async def test_private_addresses_are_reached_in_no_way_of_writing_them(db: Database, host: str) -> None:
    async with webhook_receiver() as receiver:
        port = receiver.url.rpartition(":")[2]
        await idle_with_webhook(db, f"http://{host}:{port}")
        await deliver(db, may_reach=())
    assert receiver.received == []
    error = str((await kept(db))["error"])
    assert "is not a public address" in error or "canonical" in error
