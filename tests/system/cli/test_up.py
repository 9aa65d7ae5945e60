"""`gpuward up` with real processes, from the first start to the last."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.processes.engine_accounts import why_not_isolated
from support.processes.up_process import Up, clean_env

NOBODY_UID = 65534
STUBBORN = {
    "kind": "Deployment",
    "name": "stubborn",
    "engine": "simulated",
    "args": {"ignore_sigterm": True},
    "resources": {"gpus": 1, "gpu_memory": "8GiB"},
}


def sh(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would type it, without Gpuward variables in the environment."""
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=60, check=False
    )


def gpuward(up: Up, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    env = clean_env()
    for line in (up.data_dir / "client.env").read_text().splitlines():
        name, _, value = line.partition("=")
        env[name] = value
    argv = [sys.executable, "-P", "-m", "cli", *words]
    return subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def phases(up: Up) -> list[str]:
    found = json.loads(gpuward(up, "get", "instances", "-o", "json").stdout)
    return [item["status"]["phase"] for item in found["items"]]


def skip_unless_nobody_can_run() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can switch users; the other variant runs as an ordinary user")
    probe = [sys.executable, "-c", "import controller.daemon, agent.daemon"]
    done = subprocess.run(
        probe,
        env=clean_env(),
        cwd="/",
        user=NOBODY_UID,
        group=NOBODY_UID,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("an ordinary user cannot read the interpreter or the source")


def assert_doctor_looks_at_its_agents(up: Up, user: int | None) -> None:
    """As another process of the same user, with the data folder of `up` alone."""
    account = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    argv = [sys.executable, "-P", "-m", "cli", "doctor", "-o", "json", "--data-dir", str(up.data_dir)]
    argv += ["--env-file", "/nonexistent"]
    env = {**clean_env(), "HOME": str(up.data_dir)}
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False, **account)
    findings = json.loads(done.stdout)["findings"]
    for check in ("gpu", "agent", "port", "credential", "protocol"):
        of_check = [one for one in findings if one["check"] == check]
        assert {one["message"].partition(":")[0] for one in of_check} == {"gpu-1", "gpu-2"}, of_check
        assert {one["status"] for one in of_check} == {"ok"}, of_check
    agents = [one["message"] for one in findings if one["check"] == "agent"]
    assert all(f"pid {up.process.pid}" in text and text.endswith("connected") for text in agents), agents
    assert [one["status"] for one in findings if one["check"] == "controller"] == ["ok"]
    assert {"nvml", "driver"}.isdisjoint(one["check"] for one in findings)


@pytest.mark.parametrize("user", [None, NOBODY_UID])
@pytest.mark.timeout(240)  # two starts of everything
def test_first_start_first_request_stop_and_restart(data_dir: Path, user: int | None):
    if user is not None:
        try:
            skip_unless_nobody_can_run()
        except PermissionError:
            pytest.skip("an ordinary user cannot read the interpreter")
        os.chown(data_dir, user, user)
    with Up(data_dir, "--example", "--port", "0", user=user) as up:
        up.wait_until_ready()
        assert (data_dir / "client.env").stat().st_mode & 0o777 == 0o600
        ps, curl, describe = up.commands()
        for command in (ps, curl, describe):
            done = sh(command, data_dir)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert re.findall(r"\brunning\b", sh(ps, data_dir).stdout) == ["running"] * 2
        answer = json.loads(sh(curl, data_dir).stdout)
        assert answer["choices"][0]["message"]["content"]
        assert gpuward(up, "audit").returncode == 0
        assert len(up.engines()) == 2
        assert_doctor_looks_at_its_agents(up, user)
        code, took_s = up.stop()
        assert (code, up.leftovers()) == (0, [])
        assert took_s < 10
    with Up(data_dir, "--port", "0", user=user) as up:
        up.wait_until_ready()
        assert gpuward(up, "apply", "--wait", "-f", "-", stdin=json.dumps(_example())).returncode == 0
        assert phases(up) == ["running"] * 2
        assert gpuward(up, "get", "workers").stdout.count("gpu-") == 2
        if user is None and not why_not_isolated((data_dir.parent, Path(sys.executable).resolve())):
            assert_a_program_of_a_deployment_learns_no_key(up, data_dir)
        code, _ = up.stop(signal.SIGTERM)
        assert (code, up.leftovers()) == (0, [])


@pytest.mark.timeout(240)  # five starts of everything
def test_short_sessions_do_not_delay_the_return_of_what_ran(data_dir: Path):
    took_s = []
    for session in range(5):
        with Up(data_dir, *(["--example"] if not session else []), "--port", "0") as up:
            up.wait_until_ready()
            begun = time.monotonic()
            while phases(up) != ["running"] * 2:
                assert time.monotonic() - begun < 60, phases(up)
            took_s.append(time.monotonic() - begun)
            assert gpuward(up, "get", "instances", "-o", "json").stdout.count("ended_repeatedly") == 0
            code, stopped_s = up.stop()
            assert (code, up.leftovers(), stopped_s < 10) == (0, [], True)
            assert "command refused" not in (data_dir / "logs" / "gpuward.log").read_text()
    assert max(took_s) < 10, took_s


@pytest.mark.cases
def test_a_forced_stop_does_not_count_as_a_crash_of_the_engines(data_dir: Path):
    """The second Ctrl-C kills what ignores SIGTERM, while its agent is about to end."""
    with Up(data_dir, "--agents", "1", "--port", "0") as up:
        up.wait_until_ready()
        applied = gpuward(up, "apply", "--wait", "--timeout", "60s", "-f", "-", stdin=json.dumps(STUBBORN))
        assert applied.returncode == 0, applied.stderr
        up.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        up.stop()
        assert up.leftovers() == []
    with Up(data_dir, "--agents", "1", "--port", "0") as up:
        up.wait_until_ready()
        begun = time.monotonic()
        assert gpuward(up, "wait", "deployment/stubborn", "--timeout", "60s").returncode == 0
        assert time.monotonic() - begun < 10
        events = gpuward(up, "events", "--for", "deployment/stubborn", "-o", "json").stdout
        assert '"backoff"' not in events
        up.stop()


def assert_a_program_of_a_deployment_learns_no_key(up: Up, data_dir: Path) -> None:
    """Its operator reads what it prints."""
    files = f"{data_dir}/client.env {data_dir}/agents/*/journal.sqlite {data_dir}/agents/gpu-1/journal.sqlite*"
    script = f"id -u; cat {files} /proc/{up.process.pid}/environ; ls {data_dir}/agents/gpu-1; echo done"
    thief = {"kind": "Deployment", "name": "thief", "command": ["sh", "-c", script]}
    spec = {**thief, "resources": {"gpus": 1, "gpu_memory": "1GiB"}, "restart": "never"}
    assert gpuward(up, "apply", "-f", "-", stdin=json.dumps(spec)).returncode == 0
    done = gpuward(up, "logs", "-f", "thief")
    lines = done.stdout.splitlines()
    assert lines[0] not in ("", "0"), done
    assert lines[-1] == "done"
    assert all("denied" in line or "No such file" in line for line in lines[1:-1]), lines
    assert "denied" in done.stdout
    key = re.search(r"^GPUWARD_API_KEY=(.+)$", (data_dir / "client.env").read_text(), re.MULTILINE)
    assert key is not None
    assert key[1] not in done.stdout


def _example() -> dict[str, object]:
    resources = {"gpus": 1, "gpu_memory": "8GiB"}
    return {"kind": "Deployment", "name": "hello", "engine": "simulated", "replicas": 2, "resources": resources}


@pytest.mark.cases
def test_an_engine_that_ignores_sigterm_does_not_delay_the_stop(data_dir: Path):
    with Up(data_dir, "--agents", "1", "--port", "0") as up:
        up.wait_until_ready()
        applied = gpuward(up, "apply", "--wait", "--timeout", "60s", "-f", "-", stdin=json.dumps(STUBBORN))
        assert applied.returncode == 0, applied.stderr
        assert len(up.engines()) == 1
        code, took_s = up.stop()
        assert (code, up.leftovers()) == (0, [])
        assert took_s < 10


@pytest.mark.cases
def test_the_next_start_after_a_kill_adopts_the_engines(data_dir: Path):
    with Up(data_dir, "--agents", "1", "--example", "--port", "0") as up:
        up.wait_until_ready()
        before = {engine.pid for engine in up.engines()}
        up.process.kill()
        up.wait()
        with Up(data_dir, "--agents", "1", "--port", "0") as again:
            again.wait_until_ready()
            assert gpuward(again, "apply", "--wait", "-f", "-", stdin=json.dumps(_example())).returncode == 0
            assert {engine.pid for engine in again.engines()} == before
            assert gpuward(again, "audit").returncode == 0
            assert again.stop()[0] == 0
            assert again.leftovers() == []


def test_a_port_in_use_is_reported_at_once(data_dir: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Up(data_dir, "--port", str(taken.getsockname()[1])) as up:
            assert up.wait() == 1
            assert "--port" in up.text
            assert list(data_dir.iterdir()) == []


@pytest.mark.cases
def test_a_second_start_in_the_same_folder_exits_and_does_no_harm(data_dir: Path):
    with Up(data_dir, "--agents", "1", "--port", "0") as first:
        first.wait_until_ready()
        with Up(data_dir, "--agents", "1", "--port", "0") as second:
            assert second.wait() == 1
            assert "is in use by process" in second.text
        assert gpuward(first, "audit").returncode == 0
        assert first.stop()[0] == 0


def test_an_invalid_file_of_hosts_is_refused_before_any_start(data_dir: Path):
    hosts = data_dir / "hosts.yaml"
    hosts.write_text("workers: [{name: a, gpus: [{model: X, memory: 80}]}]")
    with Up(data_dir, "--simulate", str(hosts), "--port", "0") as up:
        assert up.wait() == 2
        assert "workers.0.gpus.0.memory" in up.text
