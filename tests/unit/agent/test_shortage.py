"""A shortage of files on the agent's side says nothing about engines, and never ends the agent."""

import errno
import os
import socket

import pytest

from agent.errors import SpawnError
from agent.processes import process_group
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.processes.process_group import ProcessGroup
from agent.state.process_records import ProcessKey
from schemas.wire import ProbeOrder

PROBE = ProbeOrder(path="/health", period_s=1.0, timeout_s=1.0, failures=3)


def short(*_args: object, **_options: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_port_that_cannot_be_locked_fails_the_start_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", short)
    with pytest.raises(SpawnError, match=r"no port can be locked: .*Too many open files"):
        PortAllocator().allocate()


@pytest.mark.parametrize("order", [PROBE, None])
async def test_a_probe_without_a_file_is_unknown_and_one_without_a_listener_is_not(
    order: ProbeOrder | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        prober = Prober()
        assert await prober.probe(order, port) is False
        monkeypatch.setattr(socket, "socket", short)
        assert await prober.probe(order, port) is None
        monkeypatch.undo()


async def test_a_group_that_cannot_be_read_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "60"])  # noqa: ASYNC220, S606 - as the agent starts engines
    group = ProcessGroup(pid, ProcessKey("i", 1, 0), "/nowhere")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(process_group, "group_members", short)
            os.kill(pid, 9)
            assert await group.kill(0.3) == f"pid {pid}"
        assert await group.kill(5.0) == ""
    finally:
        group.close()
