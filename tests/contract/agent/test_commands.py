"""Commands as the protocol delivers them: repeated, reordered, late, in conflict."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from agent.processes import health_watch, lifecycle
from schemas.exit_causes import KILLED_FOR_MEMORY, cause_of
from support.processes.agents import GPU0, GPU1
from support.standins.controller import ControllerDouble, simulated_order, start_order

SLEEP = ("sleep", "1000")


@pytest.mark.usefixtures("agent")
async def test_an_engine_starts_runs_and_stops(controller: ControllerDouble) -> None:
    assert (await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))).outcome == "accepted"
    running = await controller.state("i-1", "running")
    assert running.ready
    assert running.pid is not None
    assert psutil.pid_exists(running.pid)
    assert (await controller.stop_order("i-1")).outcome == "accepted"
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("stopped", 0)
    assert not psutil.pid_exists(running.pid)


@pytest.mark.usefixtures("agent")
async def test_a_repeated_start_changes_nothing(controller: ControllerDouble) -> None:
    order = start_order(*SLEEP)
    await controller.start_order("i-1", order)
    first = await controller.state("i-1", "running")
    before = len(controller.reports)
    assert (await controller.start_order("i-1", order)).outcome == "accepted"
    await controller.until(lambda: len(controller.reports) > before)
    assert controller.reports[-1] == first


@pytest.mark.usefixtures("agent")
async def test_a_start_after_its_stop_starts_nothing(controller: ControllerDouble) -> None:
    assert (await controller.stop_order("i-1", epoch=3)).outcome == "accepted"
    gone = await controller.state("i-1", "exited", epoch=3)
    assert gone.reason == "gone"
    assert (await controller.start_order("i-1", start_order(*SLEEP), epoch=3)).outcome == "accepted"
    old = await controller.start_order("i-1", start_order(*SLEEP), epoch=2)
    assert (old.outcome, old.code) == ("refused", "old_epoch")
    assert controller.latest("i-1", epoch=3) == gone


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("script", "message", "cause"),
    [
        # argparse's own words, as vLLM and SGLang print them
        ("import argparse; argparse.ArgumentParser(prog='vllm serve').parse_args(['--max-modle-len', '9'])",
         "vllm serve: error: unrecognized arguments: --max-modle-len 9", "engine_usage"),
        # the kernel's own words
        ("import socket; a = socket.create_server(('127.0.0.1', 0)); socket.create_server(a.getsockname())",
         "OSError: [Errno 98] Address already in use", "port_taken"),
        ("print('torch.OutOfMemoryError: CUDA out of memory.'); raise RuntimeError('Engine core failed')",
         "torch.OutOfMemoryError: CUDA out of memory.", "gpu_oom"),
        ("{}['rope']", "KeyError: 'rope'", "crash"),
    ],
)  # fmt: skip
async def test_an_exit_says_why(controller: ControllerDouble, script: str, message: str, cause: str) -> None:
    await controller.start_order("i-1", start_order("{python}", "-c", script))
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.message.partition(" (while")[0]) == ("exit", message)
    assert cause_of(ended.message, ended.exit_code) == cause
    assert ended.log_line == ended.message


# It tells its port, and binds it once it is told to.
BINDS_LATE = """
import os, pathlib, socket, sys, time
pathlib.Path(sys.argv[1]).with_suffix(".new").write_text(os.environ["GPUWARD_PORT"])
pathlib.Path(sys.argv[1]).with_suffix(".new").rename(sys.argv[1] + ".port")
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
socket.create_server(("127.0.0.1", int(os.environ["GPUWARD_PORT"])))
"""


@pytest.mark.usefixtures("agent")
async def test_after_its_port_was_taken_the_next_start_has_another(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    """A stranger takes the port between its choice and the engine's bind, and keeps it."""
    told, port = tmp_path / "bind", tmp_path / "bind.port"
    await controller.start_order("i-1", start_order("{python}", "-c", BINDS_LATE, str(told), port=True))
    await controller.until(port.exists)
    taken = int(port.read_text())
    with socket.create_server(("127.0.0.1", taken)):
        told.touch()
        ended = await controller.state("i-1", "exited")
        assert cause_of(ended.message, ended.exit_code) == "port_taken"
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)), epoch=2)
        running = await controller.state("i-1", "running", epoch=2)
        env = await asyncio.to_thread(psutil.Process(running.pid).environ)
        assert int(env["GPUWARD_PORT"]) != taken


@pytest.mark.usefixtures("agent")
async def test_a_task_that_is_done_needs_no_words(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order("echo", "error: invalid argument: none"))
    ended = await controller.state("i-1", "exited")
    assert (ended.exit_code, ended.message, ended.log_line) == (0, "", "")


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(("kills", "message"), [(1, KILLED_FOR_MEMORY), (0, "")])
async def test_a_kill_by_the_kernel_is_told_from_another(
    controller: ControllerDouble, monkeypatch: pytest.MonkeyPatch, kills: int, message: str
) -> None:
    counted = [7]
    for module in (lifecycle, health_watch):
        monkeypatch.setattr(module, "oom_kills", lambda: counted[0])
    await controller.start_order("i-1", start_order(*SLEEP))
    running = await controller.state("i-1", "running")
    counted[0] += kills
    os.kill(running.pid or 0, signal.SIGKILL)
    ended = await controller.state("i-1", "exited")
    assert (ended.exit_code, ended.message, ended.log_line) == (-9, message, "")


@pytest.mark.usefixtures("agent")
async def test_an_exit_is_reported_again_unchanged(controller: ControllerDouble) -> None:
    order = start_order("sh", "-c", "exit 7")
    await controller.start_order("i-1", order)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", 7)
    before = len(controller.reports)
    await controller.start_order("i-1", order)
    await controller.until(lambda: len(controller.reports) > before)
    assert controller.reports[-1] == ended


@pytest.mark.usefixtures("agent")
async def test_an_old_term_is_refused(controller: ControllerDouble) -> None:
    controller.term = 5
    await controller.start_order("i-1", start_order(*SLEEP))
    for late in (
        await controller.start_order("i-2", start_order(*SLEEP), term=4),
        await controller.stop_order("i-1", term=4),
    ):
        assert (late.outcome, late.code) == ("refused", "old_term")
    assert (await controller.state("i-1", "running")).state == "running"


@pytest.mark.usefixtures("agent")
async def test_conflicting_claims_are_refused(controller: ControllerDouble) -> None:
    shared = start_order(*SLEEP, gpus=(GPU0,), memory_mib=5000)
    assert (await controller.start_order("i-1", shared)).outcome == "accepted"
    assert (await controller.start_order("i-2", shared)).code == "claim_conflict"
    exclusive = start_order(*SLEEP, gpus=(GPU1, GPU0), memory_mib=8192, exclusive=True)
    assert (await controller.start_order("i-3", exclusive)).code == "claim_conflict"
    unknown = start_order(*SLEEP, gpus=("GPU-no-such",))
    assert (await controller.start_order("i-4", unknown)).code == "unknown_device"
    twice = start_order(*SLEEP, gpus=(GPU1, GPU1))
    assert (await controller.start_order("i-5", twice)).code == "bad_command"
    fits = start_order(*SLEEP, gpus=(GPU0,), memory_mib=3192)
    assert (await controller.start_order("i-6", fits)).outcome == "accepted"


@pytest.mark.usefixtures("agent")
async def test_a_higher_epoch_is_refused_until_the_lower_one_has_exited(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order(*SLEEP))
    assert (await controller.start_order("i-1", start_order(*SLEEP), epoch=2)).code == "claim_conflict"
    await controller.stop_order("i-1")
    await controller.state("i-1", "exited")
    assert (await controller.start_order("i-1", start_order(*SLEEP), epoch=3)).outcome == "accepted"


@pytest.mark.usefixtures("agent")
async def test_an_invalid_command_is_refused_by_its_number(controller: ControllerDouble) -> None:
    await controller.send('{"type":"command","command_id":77,"term":1,"instance":"i","epoch":1,"verb":"dance"}')
    await controller.until(lambda: 77 in controller.results)
    assert controller.results[77].code == "bad_command"
    assert "verb" in controller.results[77].message


@pytest.mark.usefixtures("agent")
async def test_a_missing_program_fails_at_once(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order("no-such-program", port=True))
    failed = await controller.state("i-1", "exited")
    assert failed.reason == "spawn_failed"
    assert "no-such-program" in failed.message


@pytest.mark.usefixtures("agent")
async def test_ranks_of_one_instance_run_side_by_side(controller: ControllerDouble) -> None:
    for rank in (0, 1):
        assert (await controller.start_order("i-1", start_order(*SLEEP), rank=rank)).outcome == "accepted"
    await controller.until(lambda: all(_state(controller, rank) == "running" for rank in (0, 1)))
    await controller.stop_order("i-1", rank=1)
    await controller.until(lambda: _state(controller, 1) == "exited")
    assert _state(controller, 0) == "running"


def _state(controller: ControllerDouble, rank: int) -> str:
    report = controller.latest("i-1", rank=rank)
    return report.state if report else ""


@pytest.mark.usefixtures("agent")
async def test_the_engine_sees_its_gpus_its_port_and_no_secret(
    controller: ControllerDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWARD_JOIN_TOKEN", "secret")
    await controller.start_order("i-1", simulated_order(gpus=(GPU1, GPU0), env={"MINE": "yes"}))
    report = await controller.state("i-1", "running")
    env = await asyncio.to_thread(psutil.Process(report.pid).environ)
    assert env["CUDA_VISIBLE_DEVICES"] == f"{GPU1},{GPU0}"
    assert (env["GPUWARD_INSTANCE"], env["GPUWARD_EPOCH"], env["GPUWARD_RANK"]) == ("i-1", "1", "0")
    assert env["MINE"] == "yes"
    assert {name for name in env if name.startswith("GPUWARD_")} == {
        "GPUWARD_INSTANCE",
        "GPUWARD_EPOCH",
        "GPUWARD_RANK",
        "GPUWARD_PORT",
        "GPUWARD_AGENT_DIR",
    }


@pytest.mark.usefixtures("agent")
async def test_a_refused_start_stays_refused(controller: ControllerDouble) -> None:
    """The controller gives its claims to others: a repeated command must not start once it would fit."""
    holder = start_order(*SLEEP, gpus=(GPU0,), memory_mib=8192, exclusive=True)
    await controller.start_order("i-1", holder)
    await controller.state("i-1", "running")
    assert (await controller.start_order("i-2", holder)).code == "claim_conflict"
    await controller.stop_order("i-1")
    await controller.state("i-1", "exited")
    assert (await controller.start_order("i-2", holder)).code == "claim_conflict"
    assert (await controller.start_order("i-2", holder, epoch=2)).outcome == "accepted"


_CHATTERS = ("{python}", "-c", "import time\nwhile True: print('loading', flush=True); time.sleep(0.02)")


@pytest.mark.usefixtures("agent")
async def test_an_engine_that_only_logs_ends_after_twelve_start_timeouts(controller: ControllerDouble) -> None:
    began_s = asyncio.get_running_loop().time()
    await controller.start_order("i-1", start_order(*_CHATTERS, port=True, start_timeout_s=0.3))
    ended = await controller.state("i-1", "exited")
    assert ended.reason == "start_timeout"
    assert "12 times its start timeout" in ended.message
    assert asyncio.get_running_loop().time() - began_s >= 12 * 0.3
