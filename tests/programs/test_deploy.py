"""The systemd units and the script that makes a host a worker."""

import configparser
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from agent.settings import AgentSettings
from cli.transport.connection import read_client_env
from http1.daemon.open_files import LOW_LIMIT

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
INSTALL = ROOT / "deploy" / "install-agent.sh"
LIMIT_S = 60.0


def service(unit: Path) -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)  # a unit may name several files
    parsed.optionxform = str  # type: ignore[assignment,method-assign] # keys keep their case
    parsed.read(unit)
    assert set(parsed) == {"DEFAULT", "Unit", "Service", "Install"}
    return parsed["Service"]


def test_each_daemon_has_a_unit_that_restarts_it() -> None:
    assert [unit.name for unit in UNITS] == [f"gpuward-{name}.service" for name in ("agent", "controller", "gateway")]
    for unit in UNITS:
        assert service(unit)["Restart"] == "always"
        assert f"gpuward {unit.stem.removeprefix('gpuward-')}" in service(unit)["ExecStart"]


def test_an_agent_is_stopped_without_its_engines() -> None:
    agent = service(ROOT / "deploy" / "systemd" / "gpuward-agent.service")
    assert (agent["KillMode"], agent["OOMPolicy"]) == ("process", "continue")
    assert {"memory", "pids"} <= set(agent["Delegate"].split())


def test_engines_reach_their_folders_where_a_controller_runs_too() -> None:
    """The agent's folder is in the controller's, and engines have accounts of their own."""
    agent, controller = (
        service(ROOT / "deploy" / "systemd" / f"gpuward-{one}.service") for one in ("agent", "controller")
    )
    assert agent["StateDirectory"].startswith(f"{controller['StateDirectory']}/")
    assert agent["StateDirectoryMode"] == controller["StateDirectoryMode"] == "0711"
    assert controller["UMask"] == "0077", "what is in it is closed"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    program = tmp_path / "gpuward"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/gpuward/bin/gpuward", str(program)))
    for other in (*UNITS, *unit.parent.glob("*.socket")):  # which it may require
        if other != unit:
            (tmp_path / other.name).write_text(other.read_text())
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    # Older versions ignore what they do not know, and another unit of this machine may be at fault.
    said = [line for line in done.stderr.splitlines() if unit.name in line and "Unknown key" not in line]
    assert said == []


@pytest.mark.parametrize(("unit", "most"), [("controller", 20), ("gateway", 20), ("agent", 85)], ids=str)
def test_each_unit_may_do_little_more_than_it_must(unit: str, most: int, tmp_path: Path) -> None:
    """systemd's own judgement, from 0 to 100. Engines inherit what the agent's unit says."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    copy = tmp_path / f"gpuward-{unit}.service"
    copy.write_text((ROOT / "deploy" / "systemd" / copy.name).read_text())
    done = subprocess.run(
        [analyze, "security", "--no-pager", "--offline=true", f"--threshold={most}", str(copy)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_the_service_manager_waits_longer_than_the_daemons_take() -> None:
    units = {unit.stem.removeprefix("gpuward-"): service(unit) for unit in UNITS}
    for unit in units.values():
        assert unit["Type"] == "notify"
        assert int(unit["WatchdogSec"]) >= 30, "a loaded machine is not a hanging daemon"
        assert int(unit["TimeoutStartSec"]) >= 2 * 60
        assert int(unit["LimitNOFILE"]) >= 16 * LOW_LIMIT
    assert units["gateway"]["NotifyAccess"] == "all", "its serving processes are children"
    assert units["gateway"]["KillMode"] == "process", "what drains outlives the first process"


def test_the_accounts_of_the_units_are_made_by_systemd(tmp_path: Path) -> None:
    program = shutil.which("systemd-sysusers")
    if program is None or os.geteuid() != 0:
        pytest.skip("this needs systemd-sysusers and root")
    (tmp_path / "etc").mkdir()
    accounts = str(ROOT / "deploy" / "systemd" / "gpuward.sysusers")
    for _ in range(2):  # repeated, it changes nothing
        done = subprocess.run(
            [program, f"--root={tmp_path}", accounts], capture_output=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
    made = [line.split(":")[0] for line in (tmp_path / "etc" / "passwd").read_text().splitlines()]
    assert made == ["gpuward"]
    used = {service(unit).get("User", "root") for unit in UNITS}
    assert used == {"root", "gpuward"}


def install(root: Path, *argv: str, token: str = "", program: str = "/bin/true") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ROOT": str(root), "GPUWARD": program}
    return subprocess.run(
        ["sh", str(INSTALL), *argv], input=token, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_one_line_makes_a_host_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = install(tmp_path, "https://gpuward.example", "gpu-3", token="tok\n")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "etc" / "gpuward"
    assert (folder / "join-token").read_text() == "tok\n"
    assert stat.S_IMODE((folder / "join-token").stat().st_mode) == 0o600
    unit = (tmp_path / "etc/systemd/system/gpuward-agent.service").read_text()
    assert "\nExecStart=/bin/true agent\n" in unit
    (folder / "agent.env").write_text((folder / "agent.env").read_text() + "GPUWARD_AGENT_PROXY_PORT=7070\n")
    assert install(tmp_path, "https://other.example").returncode == 0, "the token is there already"
    written = read_client_env(folder / "agent.env")
    assert written == {
        "GPUWARD_AGENT_CONTROLLER_URL": "https://other.example",
        "GPUWARD_AGENT_JOIN_TOKEN_FILE": "/etc/gpuward/join-token",
        "GPUWARD_AGENT_NAME": "gpu-3",
        "GPUWARD_AGENT_ON_EXIT": "keep",
        "GPUWARD_AGENT_ENGINE_USER": "60706-61183",
        "GPUWARD_AGENT_PROXY_PORT": "7070",
    }
    for name, value in written.items():
        monkeypatch.setenv(name, value)
    settings = AgentSettings()  # type: ignore[call-arg] # all of it comes from the environment
    assert (settings.name, settings.on_exit, settings.proxy_port) == ("gpu-3", "keep", 7070)


def test_a_host_that_has_an_agent_keeps_its_engines_account(tmp_path: Path) -> None:
    (tmp_path / "etc" / "gpuward").mkdir(parents=True)
    settings = tmp_path / "etc" / "gpuward" / "agent.env"
    settings.write_text("GPUWARD_AGENT_NAME=gpu-3\n")
    assert install(tmp_path, "https://gpuward.example", token="tok\n").returncode == 0
    assert "GPUWARD_AGENT_ENGINE_USER" not in read_client_env(settings)


@pytest.mark.parametrize(("argv", "token", "program", "says"), [
    ((), "tok", "/bin/true", "usage"),
    (("gpuward.example",), "tok", "/bin/true", "must begin with http"),
    (("http://c",), "", "/bin/true", "gpuward join-token create"),
    (("http://c",), "tok", "/none/such", "install gpuward[agent]"),
])  # fmt: skip
def test_what_is_missing_is_said(tmp_path: Path, argv: tuple[str, ...], token: str, program: str, says: str) -> None:
    done = install(tmp_path, *argv, token=token, program=program)
    assert done.returncode != 0
    assert says in done.stderr
