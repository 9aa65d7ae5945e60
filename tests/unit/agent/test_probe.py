"""A probe that this agent could not make says nothing about the engine."""

import errno
import socket

import aiohttp
import pytest

from agent.decide.health import HealthLimits, ProcessHealth, after_probe
from agent.processes.probe import Prober
from schemas.wire import ProbeOrder

ORDER = ProbeOrder(path="/health", period_s=1.0, timeout_s=1.0, failures=1)


def failing(number: int) -> aiohttp.ClientSession:
    def no_socket(_: object) -> socket.socket:
        raise OSError(number, "on purpose")

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=no_socket))


@pytest.mark.parametrize(
    ("number", "answered"), [(errno.EMFILE, None), (errno.ENFILE, None), (errno.ECONNREFUSED, False)]
)
async def test_too_many_open_files_are_no_answer_of_the_engine(number: int, answered: bool | None) -> None:
    async with failing(number) as session:
        assert await Prober(session).probe(ORDER, 9) is answered


def test_an_unknown_probe_changes_nothing() -> None:
    limits = HealthLimits(failures=1, start_timeout_s=1.0, liveness_timeout_s=1.0)
    running = ProcessHealth(state="running", progress_s=0.0, ready=True)
    assert after_probe(running, limits, answered=None, now_s=50.0) == running
    assert after_probe(running, limits, answered=False, now_s=50.0).state == "unhealthy"
