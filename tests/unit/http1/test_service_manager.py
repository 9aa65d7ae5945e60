"""What a daemon tells the service manager that started it."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from http1.daemon.service_manager import ALIVE, READY, STOPPING, ServiceManager

NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager, which the environment names."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_states_are_sent_and_no_child_inherits_the_socket(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    claimed = ServiceManager.claim()
    assert claimed.watchdog_s == 30
    assert not set(NAMES) & set(os.environ)
    claimed.notify(READY)
    assert manager.recv(100) == b"READY=1"
    claimed.notify(STOPPING, "STATUS=ends")
    assert manager.recv(100) == b"STOPPING=1\nSTATUS=ends"
    assert ServiceManager.claim() == ServiceManager(), "it is claimed once"


def test_without_one_or_after_its_end_nothing_fails(manager: socket.socket) -> None:
    ServiceManager().notify(READY)
    claimed = ServiceManager.claim()
    manager.close()
    claimed.notify(READY)


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        name = f"gpuward-test-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        ServiceManager.claim().notify(STOPPING)
        assert abstract.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "5000000"}, 5),
        ({"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
@pytest.mark.usefixtures("manager")
def test_the_watchdog_is_of_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], seconds: float | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ServiceManager.claim().watchdog_s == seconds


def test_a_watchdog_without_a_socket_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "relative")
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    assert ServiceManager.claim() == ServiceManager()


async def test_signs_of_life_come_as_long_as_the_loop_comes_round(manager: socket.socket) -> None:
    claimed = ServiceManager(ServiceManager.claim().address, watchdog_s=0.3)
    task = asyncio.create_task(claimed.keep_alive())
    signs = [await asyncio.to_thread(manager.recv, 100) for _ in range(3)]
    task.cancel()
    assert signs == [ALIVE.encode()] * 3
