from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
