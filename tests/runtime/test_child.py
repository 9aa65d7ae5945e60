"""The killable child, with real processes, under both event loops: its whole group is gone afterwards."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from controller.runtime.child import ChildCrashed, ChildError, ChildTimeout, run_child
from runtime.polling import until

LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]
MEMORY = 512 * 1024 * 1024


def child(
    target: str, payload: Any, *, deadline_s: float = 30.0, memory_bytes: int = MEMORY
) -> Coroutine[Any, Any, Any]:
    return run_child(f"runtime.child_targets:{target}", payload, deadline_s=deadline_s, memory_bytes=memory_bytes)


async def appears(path: Path) -> list[int]:
    """The pids that a child writes once it runs."""
    await until(lambda: path.exists() and path.read_text())
    return [int(pid) for pid in path.read_text().split()]  # noqa: ASYNC240 - a few bytes in a test


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("new_loop", LOOPS)
def test_both_event_loops_run_kill_and_time_out(new_loop: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        payload = {"nested": [1, 2.5, None, True, "ü"]}
        assert await child("echo", payload) == payload
        with pytest.raises(ChildTimeout):
            await child("sleep", 60, deadline_s=0.3)
        task = asyncio.create_task(child("announce_and_sleep", str(tmp_path / "pid")))
        (pid,) = await appears(tmp_path / "pid")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not psutil.pid_exists(pid)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


async def test_the_child_lives_in_its_own_session_with_limits_and_little_else() -> None:
    os.environ["GPUWARD_TEST_SECRET"] = "not for children"
    try:
        seen = await child("surroundings", None)
    finally:
        del os.environ["GPUWARD_TEST_SECRET"]
    assert seen["sid"] == seen["pid"] != os.getpid()
    assert seen["parent"] == os.getpid()
    assert seen["core"] == 0
    assert seen["memory"] == MEMORY
    assert seen["cwd"] == "/"
    assert "PATH" in seen["environment"]
    assert "GPUWARD_TEST_SECRET" not in seen["environment"]
    assert not {"asyncio", "orjson", "structlog", "gpuward"} & set(seen["modules"])


@pytest.mark.parametrize("size", [0, 100_000, 3_000_000])
async def test_payloads_and_results_larger_than_a_pipe_arrive_whole(size: int) -> None:
    assert await child("echo", "x" * size) == "x" * size


@pytest.mark.parametrize(
    ("target", "type_name", "retryable"),
    [
        ("raise_busy", "BusyError", True),
        ("raise_value", "ValueError", False),
        ("raise_connection", "ConnectionRefusedError", True),
    ],
)
async def test_what_the_target_raises_arrives_with_type_text_and_class(
    target: str, type_name: str, retryable: bool
) -> None:
    with pytest.raises(ChildError) as caught:
        await child(target, "because")
    assert (caught.value.type, caught.value.message, caught.value.retryable) == (type_name, "because", retryable)


async def test_a_crash_has_its_exit_code_and_the_end_of_stderr() -> None:
    with pytest.raises(ChildCrashed) as caught:
        await child("exit_loudly", 3)
    assert caught.value.exit_code == 3
    assert caught.value.stderr_tail.endswith("xthe end")
    assert len(caught.value.stderr_tail) < 20_000
    assert caught.value.retryable


async def test_a_child_killed_by_the_system_is_a_crash_by_signal() -> None:
    with pytest.raises(ChildCrashed) as caught:
        await child("kill_self", None)
    assert caught.value.exit_code == -9


async def test_what_the_target_prints_does_not_spoil_its_answer_and_its_input_is_empty() -> None:
    assert await child("print_much", 50_000) == ""


@pytest.mark.parametrize("how", ["fork", "spawn"])
async def test_the_child_starts_no_processes(how: str) -> None:
    with pytest.raises(ChildError, match="starts no processes") as caught:
        await child("spawn", how)
    assert caught.value.type == "PermissionError"


async def test_the_child_cannot_allocate_more_than_its_limit() -> None:
    assert await child("allocate", 64 * 1024 * 1024) == 64 * 1024 * 1024
    with pytest.raises(ChildError) as caught:
        await child("allocate", MEMORY)
    assert caught.value.type == "MemoryError"


async def test_too_large_a_result_is_an_error_that_says_so() -> None:
    with pytest.raises(ChildError, match="return less") as caught:
        await child("big", 17 * 1024 * 1024)
    assert caught.value.type == "ResultTooLarge"
    assert not caught.value.retryable


async def test_a_result_that_is_not_json_is_an_error() -> None:
    with pytest.raises(ChildError) as caught:
        await child("not_json", None)
    assert caught.value.type == "ValueError"


async def test_it_tells_once_when_the_target_begins_to_work(tmp_path: Path) -> None:
    began: list[bool] = []
    path = tmp_path / "pid"
    task = asyncio.create_task(
        run_child(
            "runtime.child_targets:announce_and_sleep",
            str(path),
            deadline_s=30,
            memory_bytes=MEMORY,
            on_working=lambda: began.append(task.done()),
        )
    )
    await appears(path)
    await until(lambda: began)
    task.cancel()
    await asyncio.wait([task])
    assert began == [False]


@pytest.mark.parametrize("target", ["runtime.child_targets:missing", "no_such_module_here:f"])
async def test_a_missing_target_is_an_error(target: str) -> None:
    with pytest.raises(ChildError):
        await run_child(target, None, deadline_s=30, memory_bytes=MEMORY)


async def test_bad_arguments_are_refused_before_a_process_is_started() -> None:
    with pytest.raises(ValueError, match="module:function"):
        await run_child("nonsense", None, deadline_s=30, memory_bytes=MEMORY)
    with pytest.raises(ValueError, match="JSON"):
        await child("echo", object())
    with pytest.raises(ValueError, match="pass less"):
        await child("echo", "x" * 17 * 1024 * 1024)


async def test_a_cancel_takes_the_whole_group_along(tmp_path: Path) -> None:
    task = asyncio.create_task(child("fork_and_sleep", str(tmp_path / "pids")))
    pids = await appears(tmp_path / "pids")
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(alive(pid) for pid in pids)


async def test_a_crash_takes_the_whole_group_along(tmp_path: Path) -> None:
    with pytest.raises(ChildCrashed) as caught:
        await child("fork_and_crash", str(tmp_path / "pid"))
    assert caught.value.exit_code == 7
    (pid,) = await appears(tmp_path / "pid")
    assert not alive(pid)


async def test_the_deadline_takes_the_whole_group_along(tmp_path: Path) -> None:
    with pytest.raises(ChildTimeout):
        await child("fork_and_sleep", str(tmp_path / "pids"), deadline_s=2)
    assert not any(alive(pid) for pid in await appears(tmp_path / "pids"))


async def test_a_second_cancel_does_not_cut_the_cleaning_short(tmp_path: Path) -> None:
    task = asyncio.create_task(child("announce_and_sleep", str(tmp_path / "pid")))
    (pid,) = await appears(tmp_path / "pid")
    task.cancel()
    while not task.done():
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid)


async def test_a_cancel_at_any_moment_of_the_start_leaves_nothing() -> None:
    before = set(psutil.Process().children())
    descriptors = psutil.Process().num_fds()
    for wait_s in [0.0, *(n * 0.002 for n in range(15))]:
        task = asyncio.create_task(child("sleep", 60))
        await asyncio.sleep(wait_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(psutil.Process().children()) <= before
    assert psutil.Process().num_fds() == descriptors


async def test_a_cancel_is_quick(tmp_path: Path) -> None:
    took = []
    for n in range(5):
        path = tmp_path / str(n)
        task = asyncio.create_task(child("announce_and_sleep", str(path)))
        (pid,) = await appears(path)
        began = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        took.append(time.perf_counter() - began)
        assert not psutil.pid_exists(pid)
    assert min(took) < 0.05


async def test_starting_is_quick() -> None:
    """Against a bare interpreter in the same run: the child may take a few times as long, no more."""
    ratios = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "import json, ctypes"], check=True)  # noqa: ASYNC221 - measured
        bare = time.perf_counter() - began
        began = time.perf_counter()
        await child("echo", None)
        ratios.append((time.perf_counter() - began) / bare)
    assert min(ratios) < 4


def test_the_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = f"""
        import asyncio
        from controller.runtime.child import run_child
        asyncio.run(run_child("runtime.child_targets:announce_and_sleep", {str(tmp_path / "pid")!r},
            deadline_s=60, memory_bytes={MEMORY}))
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=environment) as parent:
        try:
            (pid,) = asyncio.run(appears(tmp_path / "pid"))
            assert alive(pid)
        finally:
            parent.kill()
    give_up = time.monotonic() + 20
    while alive(pid) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not alive(pid)


def test_a_child_whose_parent_has_ended_does_not_start() -> None:
    from controller.runtime import child_main  # noqa: PLC0415 - only its path is needed

    other_parent = "1" if os.getpid() != 1 else "2"
    run = subprocess.run(
        [sys.executable, "-I", "-S", str(child_main.__file__), other_parent, str(MEMORY), "1000"],
        input=b'{"target": "runtime.child_targets:echo", "payload": 1, "path": []}',
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout == b""
