"""Each step of a gateway's end has its turn, whatever becomes of the others, and the end has a limit."""

import asyncio
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.live.change_fanout import ChangeFanout
from controller.live.key_ring import KeyRing
from gateway.gateway import Gateway
from gateway.lifecycle import shutdown_limits as ending
from gateway.lifecycle.shutdown_limits import Watch, each_in_time, in_time
from gateway.queueing.lease_client import LeaseClient
from gateway.quotas.quota_client import QuotaClient
from gateway.reporting.reporter import Reporter
from gateway.routing.live_routes import LiveRoutes
from http1.bodies import Bodies
from http1.daemon.sweeper import Sweeper
from http1.protocol.client import Pool
from http1.protocol.server import Server
from support.database.away import AwayDatabase

LIMIT_S = 20.0
# In the order in which they end. A pool and a sweeper end twice: those of the gateway, and another one.
STEPS = {
    "connections": (Server, "close"),
    "usage": (QuotaClient, "stop"),
    "routes": (LiveRoutes, "stop"),
    "places": (LeaseClient, "stop"),
    "reports": (Reporter, "stop"),
    "keys": (KeyRing, "stop"),
    "sweeps": (Sweeper, "stop"),
    "agents": (Pool, "close"),
    "controller": (Pool, "close"),
}
NO_TIME = "gateway did not end in time"
CANCELLED = "a step of the gateway's end was cancelled"
FAILED = "gateway failed while it ended"


async def hangs(*_: object) -> None:
    await asyncio.Event().wait()


async def holds_on(*_: object) -> None:
    """Hangs, whatever cancels it, for longer than its limit and its time to unwind."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


async def raises(*_: object) -> None:
    raise ValueError("a defect")


async def is_cancelled(*_: object) -> None:
    task = asyncio.ensure_future(asyncio.sleep(LIMIT_S))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


def throws(*_: object) -> None:
    raise asyncio.CancelledError


BAD = [(hangs, NO_TIME), (holds_on, NO_TIME), (raises, FAILED), (is_cancelled, CANCELLED), (throws, CANCELLED)]


def errors(logs: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["step"]) for line in logs if line["log_level"] == "error"]


@pytest.mark.parametrize("which", ["connections", "usage", "sweeps"])
@pytest.mark.parametrize(("bad", "event"), BAD)
async def test_a_bad_step_ends_no_other_step(
    which: str, bad: Callable[..., Awaitable[None]], event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_STOP_LIMIT_S", 0.4)
    gateway = Gateway(
        AwayDatabase(), ChangeFanout(), ("127.0.0.1", 9),  # type: ignore[arg-type]  # it is away
        bodies=lambda refused: Bodies(2**20, 2**20, refused=refused),
    )  # fmt: skip
    ran: list[tuple[type, str]] = []
    for name, (part, method) in STEPS.items():
        step = bad if name == which else None

        def run(*given: object, here: Any = (part, method), step: Any = step) -> Any:
            ran.append(here)
            return None if step is None else step(*given)

        monkeypatch.setattr(part, method, run)
    with capture_logs() as logs:
        async with asyncio.timeout(LIMIT_S):
            assert not await gateway.stop()
    assert ran == list(STEPS.values())
    assert errors(logs) == [(event, which)]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # as the end of the process does


async def test_a_gateway_that_stops_well_says_so() -> None:
    gateway = Gateway(
        AwayDatabase(), ChangeFanout(), ("127.0.0.1", 9),  # type: ignore[arg-type]  # it is away
        bodies=lambda refused: Bodies(2**20, 2**20, refused=refused),
    )  # fmt: skip
    await gateway.start(socket.create_server(("127.0.0.1", 0)))
    with capture_logs() as logs:
        assert await gateway.stop()
    assert errors(logs) == []


async def test_all_steps_that_hang_end_within_one_limit() -> None:
    ran: list[int] = []

    async def step(number: int) -> None:
        ran.append(number)
        await asyncio.Event().wait()

    began = time.monotonic()
    with capture_logs() as logs:
        assert not await each_in_time([(str(one), lambda one=one: step(one)) for one in range(9)], 1.0)  # type: ignore[misc]
    assert ran == list(range(9))
    assert [line["limit_s"] for line in logs] == [0.5**power for power in range(1, 10)]
    assert time.monotonic() - began < LIMIT_S


async def test_a_cancel_of_the_end_is_one() -> None:
    hanging = asyncio.create_task(in_time("drain", hangs, LIMIT_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert [task.get_name() for task in asyncio.all_tasks() if not task.done() and task.get_name() == "drain"] == []


@pytest.mark.parametrize(("bad", "event"), BAD[2:4])
async def test_a_drain_that_fails_is_a_defect_and_no_more(bad: Callable[[], Any], event: str) -> None:
    watch = Watch({asyncio.create_task(asyncio.sleep(LIMIT_S))})
    with capture_logs() as logs:
        await watch.while_it_drains(bad(), 1.0)
    assert watch.failed
    assert errors(logs) == [(event, "drain")]


async def test_time_in_which_the_process_stands_still_does_not_count() -> None:
    async def step() -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)

    asyncio.get_running_loop().call_later(0.01, time.sleep, 1.5)
    with capture_logs() as logs:
        assert await in_time("drain", step, 1.0)
    assert not logs


def program(body: str) -> str:
    begin = """
        import os, sys, time
        from gateway.lifecycle import shutdown_limits as ending
        ending._DRAIN_MARGIN_S = ending._STOP_LIMIT_S = ending._LAST_MARGIN_S = 0.5
        ending._TICK_S = 0.1
    """
    return textwrap.dedent(begin) + textwrap.dedent(body)


def run(body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program(body)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_loop_that_hangs_ends_with_a_word_where() -> None:
    child = run("""
        def hung():
            time.sleep(60)
        with ending.end_at_last(0.1):
            hung()
    """)
    assert child.returncode == 1
    assert "Timeout" in child.stderr
    assert "in hung" in child.stderr


def test_an_end_without_stderr_has_its_limit_too() -> None:
    assert (
        run("""
        sys.stderr = None
        with ending.end_at_last(0.1):
            time.sleep(60)
    """).returncode
        == 1
    )
    assert (
        run("""
        sys.stderr = None
        with ending.end_at_last(0.1):
            pass
        os._exit(7)
    """).returncode
        == 7
    )


def test_last_words_that_none_reads_do_not_hold_the_end() -> None:
    child = run("""
        ending._SAY_S = 0.2
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writing, True)
        sys.stderr = os.fdopen(writing, "w")
        with ending.end_at_last(0.1):
            time.sleep(60)
    """)
    assert child.returncode == 1


def test_a_process_that_was_stopped_for_long_has_its_time_afterwards() -> None:
    body = program("""
        with ending.end_at_last(2.0):
            print("drains", flush=True)
            sys.stdin.readline()
        os._exit(7)
    """)
    with subprocess.Popen([sys.executable, "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"drains\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(4.5)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.3)  # a clock would have noticed
        child.communicate(b"\n", timeout=LIMIT_S)
    assert child.returncode == 7
