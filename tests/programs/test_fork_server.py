"""The server that forks programs for tests: a program that a test forgets fails the run, and ends."""

from pathlib import Path

import psutil
import pytest

from support.processes.forked import ForkedProcess, ForkServer, fork_server


def test_a_program_that_is_left_running_is_named_and_ended(data_dir: Path) -> None:
    pids: list[int] = []
    with pytest.raises(AssertionError, match=str(data_dir)) as raised:
        leave_one_of_two(data_dir, pids)
    left, ended = pids
    assert not psutil.pid_exists(left)
    assert f"{left} http.server" in str(raised.value)
    assert f"{ended} http.server" not in str(raised.value)


def leave_one_of_two(folder: Path, pids: list[int]) -> None:
    with fork_server() as server:
        _, ended = both = started(server, folder), started(server, folder)
        pids.extend(one.pid for one in both)
        ended.kill()
        ended.wait(10)


def started(server: ForkServer, folder: Path) -> ForkedProcess:
    with (folder / "log").open("wb") as log:
        return server.start("http.server", ("0", "--bind", "127.0.0.1", "--directory", str(folder)), {}, log)
