"""Joining with a token, and the data folder that keeps the credential."""

import asyncio
from pathlib import Path

import pytest

from schemas.wire import Rejected
from support.processes.agents import AgentUnderTest, running_agent, settings_for
from support.standins.controller import (
    CREDENTIAL,
    TOKEN,
    WAIT_S,
    ControllerDouble,
)


async def _exit_code(controller: ControllerDouble, folder: Path, **fields: object) -> int:
    agent = AgentUnderTest(settings_for(controller, folder, **fields))
    async with asyncio.timeout(WAIT_S):
        return await agent.task


async def test_a_wrong_token_ends_the_agent(controller: ControllerDouble, tmp_path: Path) -> None:
    assert await _exit_code(controller, tmp_path, join_token="wrong") == 1
    assert len(controller.joins) == 1


async def test_without_credential_and_token_the_agent_ends(controller: ControllerDouble, tmp_path: Path) -> None:
    assert await _exit_code(controller, tmp_path, join_token=None) == 1
    assert controller.joins == []


async def test_a_final_rejection_ends_the_agent_and_a_new_token_joins_again(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await controller.send(Rejected(message="deleted", final=True))
        async with asyncio.timeout(WAIT_S):
            assert await agent.task == 1
    controller.credentials.clear()
    assert await _exit_code(controller, tmp_path, join_token=None) == 1
    assert await _exit_code(controller, tmp_path, join_token="another") == 1
    assert [join.token for join in controller.joins] == [TOKEN, "another"]


async def test_a_new_token_in_the_token_file_joins_again(controller: ControllerDouble, tmp_path: Path) -> None:
    file = tmp_path / "token"
    given = {"join_token": None, "join_token_file": file}
    assert await _exit_code(controller, tmp_path, **given) == 1
    assert controller.joins == []
    file.write_text(f"{TOKEN}\n")
    async with running_agent(controller, tmp_path, **given):
        pass
    file.unlink()
    async with running_agent(controller, tmp_path, **given):
        pass
    controller.credentials.clear()
    assert await _exit_code(controller, tmp_path, **given) == 1
    file.write_text("another\n")
    assert await _exit_code(controller, tmp_path, **given) == 1
    assert [join.token for join in controller.joins] == [TOKEN, "another"]


async def test_an_empty_token_file_is_refused(
    controller: ControllerDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("\n")
    assert await _exit_code(controller, tmp_path, join_token=None, join_token_file=file) == 1
    assert controller.joins == []
    assert "is empty" in "".join(capsys.readouterr())


async def test_a_second_agent_on_the_same_folder_is_refused(
    controller: ControllerDouble, agent: AgentUnderTest, tmp_path: Path
) -> None:
    assert await _exit_code(controller, tmp_path) == 1
    assert not agent.task.done()


async def test_another_name_on_the_same_folder_is_refused(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        pass
    assert await _exit_code(controller, tmp_path, name="other") == 1


@pytest.mark.usefixtures("controller")
async def test_only_the_owner_can_read_the_credential(agent: AgentUnderTest) -> None:
    folder = agent.settings.data_dir
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "journal.sqlite").stat().st_mode & 0o077 == 0
    assert CREDENTIAL not in repr(agent.settings)
