"""What decides a hand-over between gateways: which process outlives which, and what settings a data folder gives."""

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest
from pydantic import ValidationError

from controller.data_folder import locked_folder
from controller.settings import ControllerSettings
from gateway.lifecycle.prefork import Handover, serve_forked
from gateway.settings import GatewaySettings
from http1.tls.authority import Authority

WAIT_S = 20.0


def until(path: Path) -> str:
    """What a process has written into a file, once it is there."""
    deadline = time.monotonic() + WAIT_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    return path.read_text()


def until_gone(pid: int) -> None:
    """A process that is not a child of this one: it has ended, or waits to be reaped."""
    deadline = time.monotonic() + WAIT_S
    while psutil.pid_exists(pid):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        assert time.monotonic() < deadline, pid
        time.sleep(0.02)


def parent_of(folder: Path, serve: str) -> int:
    """Forks a process that runs two children with a hand-over; returns its pid. `serve`: what these do at SIGTERM."""
    pid = os.fork()
    if pid:
        return pid
    handover = Handover()

    def run(number: int, _parents: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        (folder / f"pid-{number}").write_text(str(os.getpid()))
        signal.sigwait({signal.SIGTERM})
        if serve == "hangs" and number == 1:
            time.sleep(60)
        handover.leave(number)
        time.sleep(1.0)  # answers go on
        (folder / f"done-{number}").write_text("yes")
        return 0

    code = 1
    try:
        code = serve_forked(run, 2, parents=None, handover=handover)
    finally:
        os._exit(code)  # never goes on as a second run of these tests


def ended(pid: int) -> int:
    """The exit code of a child of this process."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    raise AssertionError("it does not end")


def test_children_that_have_left_outlive_their_parent(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, "drains")
    pids = [int(until(tmp_path / f"pid-{number}")) for number in (0, 1)]
    os.kill(parent, signal.SIGTERM)
    assert ended(parent) == 0
    assert all(psutil.pid_exists(pid) for pid in pids), "they drain"
    assert [until(tmp_path / f"done-{number}") for number in (0, 1)] == ["yes", "yes"]


def test_a_child_that_does_not_leave_is_killed_and_the_others_drain(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, "hangs")
    hanging = int(until(tmp_path / "pid-1"))
    until(tmp_path / "pid-0")
    os.kill(parent, signal.SIGTERM)
    assert ended(parent) == 0
    assert until(tmp_path / "done-0") == "yes"
    until_gone(hanging)


def test_children_that_serve_die_with_their_parent(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, "drains")
    pids = [int(until(tmp_path / f"pid-{number}")) for number in (0, 1)]
    os.kill(parent, signal.SIGKILL)
    assert ended(parent) == -signal.SIGKILL
    for pid in pids:
        until_gone(pid)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in os.environ if one.startswith("GPUWARD_")]:
        monkeypatch.delenv(name)


def test_a_data_folder_gives_what_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked_folder(tmp_path):  # by the controller that serves
        found = GatewaySettings(data_dir=tmp_path)  # type: ignore[call-arg]  # the rest is found
    assert found.controller == str(tmp_path / "controller.sock")
    assert str(tmp_path) in unquote(found.database_url.get_secret_value())
    assert found.tls_cert is None
    authority = Authority(tmp_path)
    authority.make(datetime.now(UTC))
    authority.issue_own(["gpuward.example"], datetime.now(UTC))
    found = GatewaySettings(data_dir=tmp_path)  # type: ignore[call-arg]  # as above
    assert (found.tls_cert, found.tls_key) == (authority.server, authority.server)

    monkeypatch.setenv("GPUWARD_DATABASE_URL", "postgresql://db.example/gpuward")
    monkeypatch.setenv("GPUWARD_TLS_CERT", "/etc/own.crt")
    monkeypatch.setenv("GPUWARD_TLS_KEY", "/etc/own.key")
    found = GatewaySettings(data_dir=tmp_path)  # type: ignore[call-arg]  # as above
    assert found.database_url.get_secret_value() == "postgresql://db.example/gpuward"
    assert (found.tls_cert, found.tls_key) == (Path("/etc/own.crt"), Path("/etc/own.key"))
    assert found.controller == str(tmp_path / "controller.sock")


def test_a_controller_that_is_named_counts_before_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="database_url"):  # that of another host's controller is not here
        GatewaySettings(data_dir=tmp_path, controller="http://10.0.0.1:8420")  # type: ignore[call-arg]  # it is missing


def test_the_socket_alone_needs_a_gateway_service(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="--no-gateway"):
        ControllerSettings(data_dir=tmp_path, socket_only=True)
    assert ControllerSettings(data_dir=tmp_path, socket_only=True, gateway=False).socket_only
