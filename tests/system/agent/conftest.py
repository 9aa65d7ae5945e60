from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.nvml.false_driver import FalseDriver
from support.nvml.reader import Reader
from support.processes.agents import AgentUnderTest, running_agent
from support.standins.controller import ControllerDouble, controller_double


@pytest.fixture
async def controller() -> AsyncIterator[ControllerDouble]:
    async with controller_double() as double:
        yield double


@pytest.fixture
async def agent(controller: ControllerDouble, tmp_path: Path) -> AsyncIterator[AgentUnderTest]:
    async with running_agent(controller, tmp_path) as running:
        yield running


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FalseDriver:
    made = FalseDriver(tmp_path)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
async def reader(driver: FalseDriver) -> AsyncIterator[Reader]:
    assert driver.gpus
    made = Reader()
    yield made
    await made.aclose()
