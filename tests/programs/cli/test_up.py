import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agent.gpus.simulated import load_host
from cli.errors import CliError, UsageError
from cli.up import many_engines, startup
from cli.up.hosts import HostChoice, read_host_names, simulated_hosts
from cli.up.kill_engines import kill_engines
from cli.up.next_steps import UpInfo, first_commands, program_called
from cli.up.progress import Progress
from cli.up.startup import AgentStart, check_port, up
from support.builders.api_objects import deployment, worker
from support.standins.api import KEY, ApiDouble, serving
from support.standins.cache_host import until
from support.standins.up_daemons import FakeDaemons


@pytest.fixture
def fakes(tmp_path: Path):
    with serving(ApiDouble()) as double:
        yield FakeDaemons(double, tmp_path)


async def up_until(fakes: FakeDaemons, printed: str, capsys: pytest.CaptureFixture[str], **changes) -> tuple[int, str]:
    """Runs `up` until it has printed this text, then sends SIGINT."""
    text = ""
    running = asyncio.create_task(up(fakes.options(**changes), fakes.daemons, Progress()))
    async with asyncio.timeout(30):
        while printed not in text and not running.done():
            await asyncio.wait({running}, timeout=0.02)
            text += capsys.readouterr().out
        if not running.done():
            os.kill(os.getpid(), signal.SIGINT)
        code = await running
    return code, text + capsys.readouterr().out


async def test_without_gpus_two_hosts_are_simulated(fakes, capsys):
    code, text = await up_until(fakes, "Gpuward is ready", capsys)
    assert code == 0
    assert [a.host.name for a in fakes.agents] == ["gpu-1", "gpu-2"]
    assert {a.join_token for a in fakes.agents} == {"token-value"}
    assert len({a.data_dir for a in fakes.agents}) == 2
    assert read_host_names(fakes.agents[0].host.simulate) == ["gpu-1", "gpu-2"]
    assert fakes.double.url in text
    assert fakes.log[-1] == "controller down"
    assert len(fakes.log) == 3


def many(fakes, replicas: int) -> None:
    fakes.double.add(deployment("chat", spec={"replicas": replicas}), deployment("off", "stopped", wanted=500))


async def test_a_hundred_engines_start_without_a_word(fakes, capsys):
    many(fakes, 100)
    _, text = await up_until(fakes, "Gpuward is ready", capsys)
    assert "Warning" not in text


async def test_more_are_warned_of_where_there_is_no_terminal(fakes, capsys):
    many(fakes, 101)
    code, text = await up_until(fakes, "Gpuward is ready", capsys)
    assert code == 0
    assert "101 engines" in text[: text.index("Gpuward is ready")]
    assert fakes.agents


@pytest.mark.parametrize(("answer", "starts"), [(True, True), (False, False)])
async def test_at_a_terminal_more_start_only_if_that_is_agreed_to(fakes, capsys, answer, starts):
    questions = []

    async def ask(question: str) -> bool:
        questions.append(question)
        return answer

    many(fakes, 101)
    code, text = await up_until(fakes, "Gpuward is ready", capsys, question=ask)
    assert (code == 0, bool(fakes.agents), "Gpuward is ready" in text) == (starts, starts, starts)
    assert len(questions) == 1
    assert fakes.log[-1] == "controller down"


async def test_more_that_are_applied_later_are_warned_of_once(fakes, capsys, monkeypatch):
    monkeypatch.setattr(many_engines, "_POLL_S", 0.01)

    def looks() -> int:
        return [path.endswith("/deployments") for _, path, *_ in fakes.double.asked].count(True)

    async def apply_later() -> None:
        await until(lambda: looks() > 2)  # one is before the agents start
        many(fakes, 102)

    applying = asyncio.create_task(apply_later())
    _, text = await up_until(fakes, "102 engines", capsys)
    assert text.index("Gpuward is ready") < text.index("102 engines")
    assert text.count("102 engines") == 1
    await applying


ASKING = """
import asyncio
from cli.up.many_engines import terminal_question
ask = terminal_question()
print("no terminal" if ask is None else asyncio.run(ask("Start? ")))
"""


@pytest.mark.parametrize(("typed", "answered"), [("y\n", "True"), ("\n", "False"), ("no\n", "False")])
def test_the_answer_is_read_from_the_terminal(typed, answered):
    spawning = f"import pty, sys; pty.spawn([sys.executable, '-c', {ASKING!r}])"
    for script, expected in ((spawning, answered), (ASKING, "no terminal")):
        done = subprocess.run(
            [sys.executable, "-c", script], input=typed, capture_output=True, text=True, timeout=30, check=True
        )
        assert done.stdout.split("\n")[-2].strip().removeprefix("Start? ") == expected


def test_hosts_made_up_by_itself_have_the_memory_and_cores_of_this_machine(tmp_path):
    hosts = [load_host(host.simulate, host.name) for host in simulated_hosts(HostChoice(agents=3), tmp_path)]
    assert {(host.host_memory, host.cpus) for host in hosts} == {
        (psutil.virtual_memory().total // 2**20, os.cpu_count())
    }
    file = tmp_path / "own.yaml"
    file.write_text("workers: [{name: a, host_memory: 3TiB, cpus: 7}]")
    (own,) = simulated_hosts(HostChoice(file), tmp_path)
    assert (load_host(own.simulate, "a").host_memory, load_host(own.simulate, "a").cpus) == (3 * 2**20, 7)


async def test_a_known_agent_needs_no_token(fakes, capsys):
    fakes.double.add(worker("gpu-1"), {**worker("gpu-2"), "deleted_at": "2030-01-01T00:00:00Z"})
    await up_until(fakes, "Gpuward is ready", capsys)
    assert [a.join_token for a in fakes.agents] == [None, "token-value"]


async def test_with_gpus_this_host_is_the_only_worker(tmp_path, capsys):
    with serving(ApiDouble()) as double:
        fakes = FakeDaemons(double, tmp_path, gpus=1)
        await up_until(fakes, "Gpuward is ready", capsys)
        assert [(a.host.name, a.host.simulate) for a in fakes.agents] == [("this-host", None)]
        fakes.agents.clear()
        await up_until(fakes, "Gpuward is ready", capsys, hosts=HostChoice(agents=1))
        assert [a.host.name for a in fakes.agents] == ["gpu-1"]


async def test_the_example_is_created_once_and_then_left_unchanged(fakes, capsys):
    reads = []

    def runs(kind: str, name: str) -> None:
        if name in fakes.double.objects.get("deployments", {}) and kind == "deployments":
            reads.append(name)
            fakes.double.objects[kind][name]["status"]["phase"] = "running"

    fakes.double.script = runs
    code, _ = await up_until(fakes, "Gpuward is ready", capsys, example=True)
    assert code == 0
    assert fakes.double.objects["deployments"]["hello"]["spec"]["engine"] == "simulated"
    fakes.double.objects["deployments"]["hello"]["spec"]["replicas"] = 7
    await up_until(fakes, "Gpuward is ready", capsys, example=True)
    assert fakes.double.objects["deployments"]["hello"]["spec"]["replicas"] == 7
    assert reads


async def test_a_stopped_example_is_not_waited_for(fakes, capsys):
    limit = {"source": "user", "max_replicas": 0, "created_at": "2030-01-01T00:00:00Z"}
    fakes.double.add(deployment("hello", "stopped", intents=[limit]))
    code, _ = await up_until(fakes, "Gpuward is ready", capsys, example=True)
    assert code == 0


async def test_a_failed_agent_stops_everything_with_exit_code_1(fakes, capsys):
    def fail(start: AgentStart) -> None:
        if start.host.name == "gpu-2":
            raise OSError("no space left")

    fakes.on_agent = fail
    code, text = await up_until(fakes, "never printed", capsys)
    assert code == 1
    assert "agent gpu-2 failed: no space left" in text
    assert "controller down" in fakes.log


async def test_workers_that_are_not_ready_are_named(fakes, capsys, monkeypatch):
    monkeypatch.setattr(startup, "WORKERS_WITHIN_S", 0.3)

    def not_ready(start: AgentStart) -> None:
        fakes.double.objects["workers"][start.host.name]["status"] |= {"phase": "joining", "reason": "no_report"}

    fakes.on_agent = not_ready
    code, text = await up_until(fakes, "never printed", capsys)
    assert code == 1
    assert "gpu-1 (no_report)" in text


def test_a_busy_port_names_the_flag():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CliError, match="--port"):
            check_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="--host"):
        check_port("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("workers: []", "workers"),
        ("workers: [{name: a, gpus: [{model: X, memory: 80}]}]", "memory"),
        ("workers: [{name: a}, {name: a}]", "'a'"),
        ("{", "cannot be read"),
    ],
)
def test_an_invalid_file_of_hosts_names_the_field(tmp_path, text, part):
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=part):
        read_host_names(file)


def test_the_number_of_hosts_is_limited(tmp_path):
    file = tmp_path / "hosts.yaml"
    file.write_text("workers: [{name: a, count: 3}, {name: b}]")
    names = [host.name for host in simulated_hosts(HostChoice(file, 2), tmp_path)]
    assert names == ["a-0", "a-1"]
    with pytest.raises(UsageError, match="--agents"):
        simulated_hosts(HostChoice(file, 5), tmp_path)
    file.write_text("workers: [{name: a, count: 1000}]")
    with pytest.raises(UsageError, match="--agents 256"):
        simulated_hosts(HostChoice(file), tmp_path)


def test_the_printed_commands_work_as_printed(tmp_path):
    """Each runs in its own POSIX shell, without GPUWARD variables, from a folder with a blank in its name."""
    folder = tmp_path / "with blank"
    folder.mkdir()
    with serving(ApiDouble()) as double:
        double.add(deployment("hello"))
        (folder / "client.env").write_text(f"GPUWARD_URL={double.url}\nGPUWARD_API_KEY={KEY}\n")
        program = program_called("/x/__main__.py", sys.executable)
        info = UpInfo(double.url, folder, folder, folder / "client.env", ["gpu-1"], program)
        commands = first_commands(info, example=True) + first_commands(info, example=False)[:1]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        ran = [_shell(command.replace(" --wait", ""), env) for command in commands]
        assert [done.returncode for done in ran] == [0, 0, 0, 0], [done.stderr for done in ran]
        assert "Deployment: hello" in ran[2].stdout
        (sent,) = [asked for asked in double.asked if asked[1] == "/v1/chat/completions"]
        assert (sent[0], sent[3]["model"]) == ("POST", "hello")


def _shell(command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_is_shown_as_it_was_called():
    assert program_called(".venv/bin/gpuward", "/python") == [".venv/bin/gpuward"]
    assert shlex.join(program_called("/x/__main__.py", "/python")) == "/python -P -m cli"


def test_a_forced_stop_kills_only_engines_of_this_data_folder(tmp_path):
    def engine(folder: Path) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], "GPUWARD_AGENT_DIR": str(folder)}
        return subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)

    ours, other = engine(tmp_path / "agents" / "gpu-1"), engine(tmp_path / "agents-2" / "gpu-1")
    try:
        assert kill_engines(tmp_path / "agents") == 1
        assert ours.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (ours, other):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(10)
