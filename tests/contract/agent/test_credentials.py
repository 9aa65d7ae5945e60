"""A new credential over the connection: journaled, then used. Whatever is lost or crashes, the agent connects again."""

import asyncio
from pathlib import Path

import pytest

from agent.engine_proxy.certificate import FILE
from agent.link import incoming
from agent.state.journal import Journal
from schemas.wire import NewCredential
from support.processes.agents import running_agent
from support.standins.controller import CREDENTIAL, WAIT_S, ControllerDouble

NEXT = NewCredential(credential="next")


async def test_it_connects_again_with_the_new_one(controller: ControllerDouble, tmp_path: Path) -> None:
    controller.credentials.add("next")
    async with running_agent(controller, tmp_path):
        await controller.send(NEXT)
        await controller.connected(2)
        controller.credentials.discard(CREDENTIAL)
        await controller.drop()
        await controller.connected(3)
        assert controller.given == [CREDENTIAL, "next", "next"]


async def test_a_crash_after_the_journal_leaves_the_new_one(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.credentials.add("next")
    journaled = asyncio.Event()

    class CrashError(Exception):
        """In place of the next connection."""

    def crash(_why: str) -> CrashError:
        journaled.set()
        return CrashError()

    with monkeypatch.context() as patched:
        patched.setattr(incoming, "CredentialReplacedError", crash)
        async with running_agent(controller, tmp_path) as agent:
            await controller.send(NEXT)
            async with asyncio.timeout(WAIT_S):
                await journaled.wait()
            await agent.crash()
    controller.credentials = {"next"}
    async with running_agent(controller, tmp_path, join_token=None):
        assert controller.given[-1] == "next"


async def test_a_crash_before_the_journal_leaves_the_present_one(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    def crash(_journal: Journal, **changes: object) -> None:
        if "next_credential" in changes:
            reached.set()
            raise OSError("the disk is gone")

    async with running_agent(controller, tmp_path) as agent:
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "remember", crash)
            await controller.send(NEXT)
            async with asyncio.timeout(WAIT_S):
                await reached.wait()
            await agent.crash()
    async with running_agent(controller, tmp_path, join_token=None):
        assert controller.given[-1] == CREDENTIAL


async def test_a_new_one_that_the_controller_lost_is_given_up(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        await controller.send(NEXT)
        await controller.connected(2)
        assert controller.given == [CREDENTIAL, "next", CREDENTIAL]
        await controller.drop()
        await controller.connected(3)
        assert controller.given[3:] == [CREDENTIAL]


async def test_a_controller_that_was_restored_knows_the_one_before(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.credentials.add("next")
    async with running_agent(controller, tmp_path):
        await controller.send(NEXT)
        await controller.connected(2)
        controller.credentials = {CREDENTIAL}
        await controller.drop()
        await controller.connected(3)
        assert controller.given[-2:] == ["next", CREDENTIAL]


async def test_a_worker_that_no_credential_knows_ends(controller: ControllerDouble, tmp_path: Path) -> None:
    controller.credentials.add("next")
    async with running_agent(controller, tmp_path) as agent:
        await controller.send(NEXT)
        await controller.connected(2)
        controller.credentials.clear()
        await controller.drop()
        async with asyncio.timeout(WAIT_S):
            assert await agent.task == 1


# What its proxy shows


async def test_the_hello_tells_the_certificate_of_the_proxy(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        assert controller.hellos[-1].certificate == ""  # on the controller's own host
    told: set[str] = set()
    for _ in range(2):
        async with running_agent(controller, tmp_path, proxy_tls="on") as agent:
            told.add(controller.hellos[-1].certificate)
            assert (agent.settings.data_dir / FILE).stat().st_mode & 0o077 == 0
    assert len(told) == 1
    (agent.settings.data_dir / FILE).unlink()
    async with running_agent(controller, tmp_path, proxy_tls="on"):
        assert controller.hellos[-1].certificate not in told


# Several controllers


async def test_it_moves_on_from_one_that_is_away_and_stays_with_the_next(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    other = ControllerDouble()
    await other.start()
    try:
        urls = f"{controller.url},{other.url},http://127.0.0.1:9"
        async with running_agent(controller, tmp_path, controller_url=urls):
            first, second = (controller, other) if controller.hellos else (other, controller)
            await first.drop()
            await first.connected(2)
            assert second.hellos == []
            await first.stop()
            await second.connected(1)
            await first.start()
            await second.drop()
            await second.connected(2)
            assert len(first.hellos) == 2
    finally:
        await other.stop()
