"""The agent keeps the credential that it has chosen before it asks, and asks again with it until an answer comes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from agent.errors import AgentError
from agent.link import credential
from agent.link.credential import pending_credential
from agent.state.host_state import HostState
from agent.state.journal import Journal, read_host_state
from schemas.wire import JoinResponse, is_credential
from support.processes.agents import AgentUnderTest, running_agent, settings_for
from support.standins.controller import CREDENTIAL, TOKEN, WAIT_S, ControllerDouble


def lost(times: int) -> Callable[[web.Request], web.Response | None]:
    """Cuts the connection in place of the first answers."""
    left = [None] * times

    def cut(request: web.Request) -> None:
        if left:
            left.pop()
            assert request.transport is not None
            request.transport.abort()

    return cut


def kept(folder: Path) -> HostState:
    """What the journal of the agent in this folder holds."""
    facts = read_host_state(folder / "data")
    assert facts is not None
    return facts


async def test_each_attempt_has_one_credential(controller: ControllerDouble, tmp_path: Path) -> None:
    controller.takes_credentials, controller.joined = True, lost(2)
    async with running_agent(controller, tmp_path):
        pass
    first = controller.chosen[0]
    assert is_credential(first)
    assert controller.chosen == [first] * 3
    assert controller.given == [first]
    assert (kept(tmp_path).credential, kept(tmp_path).pending_join) == (first, None)


async def test_an_earlier_controller_names_its_own(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        pass
    assert controller.given == [CREDENTIAL]
    assert (kept(tmp_path).credential, kept(tmp_path).pending_join) == (CREDENTIAL, None)


async def test_a_crash_before_it_asks_keeps_the_credential(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.takes_credentials = True

    async def crash(*_args: object) -> None:
        raise AgentError("crashed between the journal and the question")

    with monkeypatch.context() as patched:
        patched.setattr(credential, "join", crash)
        assert await AgentUnderTest(settings_for(controller, tmp_path)).task == 1
    pending = kept(tmp_path).pending_join
    assert pending is not None
    assert controller.joins == []
    async with running_agent(controller, tmp_path):
        assert controller.chosen == [pending.credential]


async def test_a_crash_before_the_answer_keeps_the_credential(controller: ControllerDouble, tmp_path: Path) -> None:
    controller.takes_credentials = True
    asked, cut = asyncio.Event(), lost(1_000)

    def ask(request: web.Request) -> web.Response | None:
        asked.set()
        return cut(request)

    controller.joined = ask
    agent = AgentUnderTest(settings_for(controller, tmp_path))
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
    await agent.crash()
    controller.joined = None
    async with running_agent(controller, tmp_path):
        assert len(set(controller.chosen)) == 1
        assert controller.given == controller.chosen[:1]


async def test_a_journal_that_cannot_be_written_asks_nothing(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_journal: Journal, **changes: object) -> None:
        if "pending_join" in changes:
            raise AgentError("the disk is full")

    monkeypatch.setattr(Journal, "remember", full)
    assert await AgentUnderTest(settings_for(controller, tmp_path)).task == 1
    assert controller.joins == []


async def test_a_credential_that_is_taken_is_replaced(controller: ControllerDouble, tmp_path: Path) -> None:
    """The worker that joined with it was deleted meanwhile."""
    controller.takes_credentials = True

    def taken(_request: web.Request) -> web.Response | None:
        if len(controller.joins) > 1:
            return None
        return web.json_response({"error": {"code": "credential_taken", "message": "choose a new one"}}, status=409)

    controller.joined = taken
    async with running_agent(controller, tmp_path):
        assert len(set(controller.chosen)) == 2
        assert controller.given == controller.chosen[1:]


async def test_a_refused_join_keeps_the_credential_for_this_token(controller: ControllerDouble, tmp_path: Path) -> None:
    """Something between may have refused what the controller has granted."""
    controller.takes_credentials = True
    controller.joined = lambda _request: web.Response(status=403)
    assert await AgentUnderTest(settings_for(controller, tmp_path)).task == 1
    controller.joined = None
    async with running_agent(controller, tmp_path):
        assert len(set(controller.chosen)) == 1


async def test_an_answer_in_parts_is_read_whole_and_a_slow_question_is_repeated(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.takes_credentials = True

    async def parts() -> AsyncIterator[bytes]:
        answer = msgspec.json.encode(
            JoinResponse(worker="sim-1", worker_uid="uid-1", credential=controller.chosen[0])
        ).decode()
        for part in (answer[:20], answer[20:]):
            yield part.encode()
            await asyncio.sleep(0.05)  # two segments

    def answered(_request: web.Request) -> web.Response:
        controller.credentials.add(controller.chosen[0])
        return web.Response(status=408) if len(controller.joins) == 1 else web.Response(body=parts())

    controller.joined = answered
    async with running_agent(controller, tmp_path):
        assert controller.given == controller.chosen[:1]


def test_another_token_or_name_has_another_credential(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    try:
        first = pending_credential(journal, TOKEN, "a")
        assert pending_credential(journal, TOKEN, "a") == first
        assert len({first, pending_credential(journal, "other", "a"), pending_credential(journal, "other", "b")}) == 3
        assert TOKEN not in msgspec.json.encode(journal.host_state).decode()
    finally:
        journal.close()
