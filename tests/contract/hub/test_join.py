"""Joining: a join whose answer is lost is made again by the same agent, and by nothing else."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from agent.gpus.simulated import gpu_uuid
from controller.store.access.tokens import create_token, list_tokens
from controller.store.workers.maintenance import delete_worker
from schemas.wire import CREDENTIAL_HEADER, JOIN_PATH, new_credential
from support.leading.served_hub import HubUnderTest
from support.processes.agents import HOST, AgentUnderTest, simulated_settings
from support.standins.load_balancer import LoadBalancer

WAIT_S = 30.0


async def ask(hub: HubUnderTest, token: str, name: str, *credentials: str) -> tuple[int, dict[str, Any]]:
    """Status and body of one join with these headers."""
    headers = [(CREDENTIAL_HEADER, one) for one in credentials]
    async with hub.session.post(hub.url + JOIN_PATH, json={"token": token, "name": name}, headers=headers) as answer:
        return answer.status, await answer.json()


async def joined_once(hub: HubUnderTest) -> None:
    """One worker, one event, one use of the only token."""
    assert await hub.value("select count(*) from workers") == 1
    assert await hub.value("select count(*) from events where reason = 'joined'") == 1
    (token,) = await list_tokens(hub.database)
    assert token.uses == 1


@pytest.mark.parametrize("uses", [1, 3])
async def test_an_agent_whose_answers_are_lost_joins_once(hub: HubUnderTest, tmp_path: Path, uses: int) -> None:
    token = (await create_token(hub.database, uses=uses)).token
    between = await LoadBalancer(int(hub.url.rpartition(":")[2])).open()
    between.answers_to_lose = 2
    agent = AgentUnderTest(simulated_settings(between.url, tmp_path, token, HOST))
    try:
        async with asyncio.timeout(WAIT_S):
            ready = asyncio.create_task(agent.ready.wait())
            await asyncio.wait({agent.task, ready}, return_when="FIRST_COMPLETED")
        ready.cancel()
        assert not agent.task.done(), "the agent ended instead of joining again"
        assert between.answers_to_lose == 0
        await joined_once(hub)
        assert await hub.value("select array_agg(uuid order by uuid) from devices where kind = 'gpu'") == sorted(
            gpu_uuid(HOST["name"], number) for number in range(2)
        )
    finally:
        await agent.stop()
        await between.close()


async def test_joins_that_meet_are_one(hub: HubUnderTest) -> None:
    token, credential = (await create_token(hub.database, uses=2)).token, new_credential()
    answers = await asyncio.gather(*(ask(hub, token, "w", credential) for _ in range(6)))
    assert {status for status, _ in answers} == {200}
    assert {(body["worker"], body["credential"]) for _, body in answers} == {("w", credential)}
    assert len({body["worker_uid"] for _, body in answers}) == 1
    await joined_once(hub)


@pytest.mark.parametrize(("uses", "status", "code"), [(1, 401, "token_refused"), (2, 409, "name_taken")])
async def test_the_token_alone_does_not_get_the_worker(hub: HubUnderTest, uses: int, status: int, code: str) -> None:
    """Nor do the hash that the controller keeps, or the credential with another token or name."""
    token, credential = (await create_token(hub.database, uses=uses)).token, new_credential()
    assert (await ask(hub, token, "w", credential))[0] == 200
    stored = await hub.value("select credential_hash from workers")
    assert stored == hashlib.sha256(credential.encode()).digest()
    for attempt in ((), (new_credential(),), (f"gpc_{stored.hex()}",)):
        answer = await ask(hub, token, "w", *attempt)
        assert (answer[0], answer[1]["error"]["code"]) == (status, code)
    await joined_once(hub)
    other = (await create_token(hub.database)).token
    for name, taken in (("w", "name_taken"), ("other", "credential_taken")):
        answer = await ask(hub, other, name, credential)
        assert (answer[0], answer[1]["error"]["code"]) == (409, taken)
    assert (await ask(hub, "gpj_unknown", "w", credential))[0] == 401
    assert (await ask(hub, other, "other", new_credential()))[0] == 200, "no refusal has used the token"


async def test_a_deleted_worker_does_not_come_back(hub: HubUnderTest) -> None:
    token, credential = (await create_token(hub.database, uses=2)).token, new_credential()
    assert (await ask(hub, token, "w", credential))[0] == 200
    await delete_worker(hub.database, "w")
    status, body = await ask(hub, token, "w", credential)
    assert (status, body["error"]["code"]) == (409, "credential_taken")
    assert (await ask(hub, token, "w", new_credential()))[0] == 409, "nor its name"
    assert (await ask(hub, token, "v", new_credential()))[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        [""],
        ["gpc_" + "a" * 42],
        ["gpc_" + "a" * 129],
        ["gpw_" + "a" * 43],
        ["gpc_" + "a" * 42 + "/"],
        [new_credential(), new_credential()],
    ],
    ids=["empty", "short", "long", "prefix", "characters", "two"],
)
async def test_a_malformed_credential_is_refused_by_name(hub: HubUnderTest, given: list[str]) -> None:
    token = (await create_token(hub.database)).token
    status, body = await ask(hub, token, "w", *given)
    assert (status, body["error"]["code"]) == (400, "invalid")
    assert body["error"]["message"].startswith(f"{CREDENTIAL_HEADER}: must be ")
    assert not any(one and one in body["error"]["message"] for one in given)
    assert (await ask(hub, token, "w"))[0] == 200, "an agent of an earlier version sends none"
