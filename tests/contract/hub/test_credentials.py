"""The hub replaces old credentials. Until the agent has connected with the next one, both are valid."""

from typing import Any

import pytest
from aiohttp import WSServerHandshakeError

from controller.hub.credential_rotation import CredentialRotation
from controller.store.core.database import Database
from controller.store.workers import sessions
from rig.agent import AgentDouble
from rig.agent_messages import hello
from schemas.wire import SPOKEN, NewCredential, Protocols, Welcome
from support.leading.served_hub import HubUnderTest

DAY_S = 86_400.0


def rotation(hub: HubUnderTest, older_than_s: float = 30 * DAY_S) -> CredentialRotation:
    return CredentialRotation(hub.database, hub.hub._sessions, older_than_s)


async def aged(hub: HubUnderTest, days: int = 31) -> None:
    await hub.execute("update workers set credential_since = now() - $1 * interval '1 day'", days)


async def dial(hub: HubUnderTest, credential: str, spoken: Protocols = SPOKEN) -> AgentDouble:
    agent = AgentDouble(url=hub.url, http=hub.session, credential=credential)
    await agent.dial(spoken.names())
    return agent


async def connect(hub: HubUnderTest, credential: str, protocol: int = SPOKEN.highest, **fields: Any) -> AgentDouble:
    connection = await dial(hub, credential, Protocols(3, protocol))
    await connection.send(hello(protocol=protocol, **fields))
    assert isinstance(await connection.next(), Welcome)
    return connection


async def handed_over(hub: HubUnderTest, connection: AgentDouble) -> str:
    await rotation(hub).rotate_due()
    message = await connection.next()
    assert isinstance(message, NewCredential)
    return message.credential


async def is_valid(hub: HubUnderTest, credential: str) -> bool:
    try:
        await (await dial(hub, credential)).socket.close()
    except WSServerHandshakeError as error:
        return error.status != 401
    return True


async def test_an_old_credential_is_replaced_once_the_next_is_used(hub: HubUnderTest) -> None:
    await hub.add_worker()
    connection = await connect(hub, "secret-gpu-1")
    await rotation(hub).rotate_due()
    assert await hub.value("select next_credential_hash from workers") is None  # it is new
    await aged(hub)
    given = await handed_over(hub, connection)
    await rotation(hub).rotate_due()  # a second look sends no other
    assert await is_valid(hub, "secret-gpu-1")
    assert await is_valid(hub, given)
    await connect(hub, given)
    assert await is_valid(hub, given)
    assert not await is_valid(hub, "secret-gpu-1")
    row = await hub.one(
        "select next_credential_hash, credential_since > now() - interval '1 day' as young from workers"
    )
    assert (row["next_credential_hash"], row["young"]) == (None, True)


async def test_a_lost_message_leaves_the_present_one(hub: HubUnderTest) -> None:
    """The hash is stored and the controller dies before the message is sent; the next session gets another."""
    await hub.add_worker()
    connection = await connect(hub, "secret-gpu-1")
    await aged(hub)
    lost = await handed_over(hub, connection)
    again = await connect(hub, "secret-gpu-1")
    given = await handed_over(hub, again)
    assert given != lost
    assert not await is_valid(hub, lost)
    await connect(hub, given)


async def test_a_hello_that_fails_leaves_both(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    await hub.add_worker()
    connection = await connect(hub, "secret-gpu-1")
    await aged(hub)
    given = await handed_over(hub, connection)
    begin = sessions.begin_session

    async def failing(*args: Any, **fields: Any) -> Any:
        await begin(*args, **fields)
        raise OSError("the database is gone")

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "begin_session", failing)
        broken = await dial(hub, given)
        await broken.send(hello(protocol=SPOKEN.highest))
        await broken.end()
    assert await is_valid(hub, "secret-gpu-1")
    assert await is_valid(hub, given)


async def test_the_proxys_secret_changes_with_it(hub: HubUnderTest) -> None:
    """Gateways read the present one until the agent has shown that it keeps the next."""
    await hub.add_worker()
    connection = await connect(hub, "secret-gpu-1", takes_proxy_secrets=True)
    await aged(hub)
    await rotation(hub).rotate_due()
    message = await connection.next()
    assert isinstance(message, NewCredential)
    secrets = "select proxy_secret, next_proxy_secret from workers"
    assert tuple(await hub.one(secrets)) == ("proxy", message.proxy_secret)
    again = await connect(hub, "secret-gpu-1", takes_proxy_secrets=True)
    assert again.welcome is not None
    assert again.welcome.proxy_secret == "proxy", "it did not use the next credential"
    used = await connect(hub, message.credential, takes_proxy_secrets=True)
    assert used.welcome is not None
    assert used.welcome.proxy_secret == message.proxy_secret
    assert len(message.proxy_secret) >= 32
    assert tuple(await hub.one(secrets)) == (message.proxy_secret, None)


async def test_an_agent_that_cannot_keep_a_next_one_keeps_its_proxys_secret(hub: HubUnderTest) -> None:
    await hub.add_worker()
    connection = await connect(hub, "secret-gpu-1")
    await aged(hub)
    given = await handed_over(hub, connection)
    again = await connect(hub, given)
    assert again.welcome is not None
    assert again.welcome.proxy_secret == "proxy"


async def test_older_agents_keep_theirs(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await connect(hub, "secret-gpu-1", protocol=NewCredential.since - 1)
    await aged(hub)
    await rotation(hub).rotate_due()
    assert await hub.value("select next_credential_hash from workers") is None


async def test_a_session_that_is_over_writes_none(hub: HubUnderTest, database: Database) -> None:
    del database
    worker = await hub.add_worker()
    await connect(hub, "secret-gpu-1")
    await aged(hub)
    await hub.execute("update workers set session = session + 1 where id::text = $1", worker)
    await rotation(hub).rotate_due()
    assert await hub.value("select next_credential_hash from workers") is None


async def test_the_certificate_of_the_proxy_is_that_of_the_newest_hello(hub: HubUnderTest) -> None:
    await hub.add_worker()
    for certificate in ("ab" * 32, "cd" * 32, ""):
        await connect(hub, "secret-gpu-1", certificate=certificate)
        assert await hub.value("select proxy_certificate from workers") == certificate
    connection = await dial(hub, "secret-gpu-1")
    await connection.send(hello(protocol=SPOKEN.highest, certificate="no hash"))
    end = await connection.end()
    assert "certificate" in str(end)
    assert await hub.value("select proxy_certificate from workers") == ""
