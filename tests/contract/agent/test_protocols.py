"""The protocol of a connection, as an agent finds it: with old controllers, with its like, and with none in common."""

import asyncio
from pathlib import Path

import msgspec
import orjson
import pytest

from contract.wire import protocol_3
from schemas.wire import Protocols, Rejected
from support.processes.agents import GPU0, AgentUnderTest, running_agent, settings_for
from support.standins.controller import ControllerDouble, simulated_order


@pytest.mark.parametrize(("taken", "spoken"), [((), 3), (("gpuward.v3",), 3), (("gpuward.v4", "gpuward.v3"), 4)])
async def test_the_hello_names_the_highest_common_protocol(
    controller: ControllerDouble, tmp_path: Path, taken: tuple[str, ...], spoken: int
) -> None:
    controller.protocols = taken
    async with running_agent(controller, tmp_path):
        assert controller.hellos[0].protocol == spoken


async def test_an_old_controller_can_read_all_that_the_agent_sends(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.protocols = ()
    controller.sample_s = 0.5
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        await controller.state("i-1", "running")
        await controller.until(lambda: any(p.processes for p in controller.periods) and bool(controller.heartbeats))
        await controller.stop_order("i-1")
        await controller.state("i-1", "exited")
        await agent.stop()
    read = [protocol_3.agent_message.validate_json(raw) for raw in controller.raw]
    assert {message.type for message in read} >= {"hello", "heartbeat", "process", "samples", "result", "goodbye"}
    (hello,) = [message for message in read if message.type == "hello"]
    assert hello.protocol == protocol_3.PROTOCOL
    (join,) = controller.joins
    protocol_3.JoinRequest.model_validate(msgspec.to_builtins(join))


async def _until_logged(capfd: pytest.CaptureFixture[str], text: str) -> str:
    logged = ""
    async with asyncio.timeout(30):
        while text not in logged:
            await asyncio.sleep(0.05)
            logged += "".join(capfd.readouterr())
    return logged


async def test_without_a_common_protocol_the_agent_says_hello_to_none_and_waits(
    controller: ControllerDouble, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The controller's own words name both sides; after an upgrade the agent connects."""
    controller.protocols = ("gpuward.v3", "gpuward.v4")
    controller.refusal = Rejected(message="no common protocol: the agent speaks 7 to 8, the controller speaks 3 to 4")
    agent = AgentUnderTest(settings_for(controller, tmp_path), Protocols(7, 8))
    try:
        logged = await _until_logged(capfd, "the agent speaks 7 to 8, the controller speaks 3 to 4")
        assert "controller rejects this agent" in logged
        assert controller.raw == []
        controller.refusal, controller.protocols = None, ("gpuward.v8",)
        await controller.until(lambda: len(controller.hellos) == 1)
        assert orjson.loads(controller.raw[0])["protocol"] == 8
    finally:
        await agent.stop()
