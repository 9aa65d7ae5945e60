"""What units, Kubernetes, Compose and the image say to the daemons is understood: each option, variable and value."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from cli.app import app
from schemas.unknown_variables import unknown_variables
from schemas.variable_names import VARIABLES
from support.pages import DOCS, ROOT

DAEMONS: Final = ("agent", "controller", "gateway")
# What an operator gives: files and objects that the folder does not hold.
GIVEN: Final = {
    "GPUWARD_DATABASE_URL": "postgresql://gpuward@db.example/gpuward",
    "GPUWARD_GATEWAY_SECRET": "a-long-random-text",
    "GPUWARD_CONTROLLER": "https://controller.example:8420",
    "GPUWARD_AGENT_CONTROLLER_URL": "https://controller.example:8420",
}
FIELDS: Final = {"spec.nodeName": "gpu-3", "status.hostIP": "10.0.0.3"}
NAMED: Final = re.compile(r"GPUWARD_[A-Z][A-Z_]*[A-Z](?![A-Z_*]|\.\.\.)")


@dataclass
class Start:
    """One daemon as one place starts it."""

    where: str
    daemon: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


def of_kubernetes() -> list[Start]:
    found = []
    for daemon in DAEMONS:
        for one in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / f"{daemon}.yaml").read_text()):
            if "template" not in one.get("spec", {}):
                continue
            (container,) = one["spec"]["template"]["spec"]["containers"]
            env = {entry["name"]: _value(entry) for entry in container["env"]}
            if "envFrom" in container:
                env |= {name: GIVEN[name] for name in ("GPUWARD_DATABASE_URL", "GPUWARD_GATEWAY_SECRET")}
            found.append(Start(f"kubernetes/{daemon}", daemon, container["args"], env))
    return found


def _value(entry: dict[str, Any]) -> str:
    return entry["value"] if "value" in entry else FIELDS[entry["valueFrom"]["fieldRef"]["fieldPath"]]


def of_systemd() -> list[Start]:
    """The files of variables have at least what the unit's own remarks name."""
    found = []
    for daemon in DAEMONS:
        text = (ROOT / "deploy" / "systemd" / f"gpuward-{daemon}.service").read_text()
        (command,) = re.findall(r"^ExecStart=\S+ (.*)$", text, re.MULTILINE)
        needed = {"agent": ("GPUWARD_AGENT_CONTROLLER_URL",), "gateway": ("GPUWARD_CONTROLLER", "GPUWARD_DATABASE_URL")}
        env = {name: GIVEN[name] for name in needed.get(daemon, ())}
        found.append(Start(f"systemd/{daemon}", daemon, command.split(), env))
    return found


def of_compose() -> list[Start]:
    """Of a service that begins with a script: what the script adds."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    found = []
    for daemon in DAEMONS:
        env = {
            name: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", str(value))
            for name, value in services[daemon]["environment"].items()
        }
        argv = services[daemon]["command"]
        if daemon == "controller":
            assert 'exec gpuward controller "$@"' in (ROOT / "deploy/compose/controller.sh").read_text()
            argv = ["controller", *argv[1:]]
        if daemon == "agent":
            (added,) = re.findall(r"exec gpuward agent \"\$@\" (.*)", (ROOT / "deploy/compose/agent.sh").read_text())
            argv = [
                "agent",
                *added.replace('"', "").replace("$folder", "/var/lib/gpuward/agents").replace("$name", "gpu-0").split(),
            ]
        found.append(Start(f"compose/{daemon}", daemon, argv, env))
    return found


def test_a_full_disk_makes_no_controller_unhealthy() -> None:
    """It is read from then, and shows the reason."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert "/readyz?exclude=database_space" in " ".join(services["controller"]["healthcheck"]["test"])


def of_image() -> dict[str, str]:
    """The variables that every daemon of the image has."""
    return dict(re.findall(r"\b(GPUWARD_\w+)=(\S+)", (ROOT / "Dockerfile").read_text()))


STARTS: Final = [
    *of_systemd(),
    *(Start(one.where, one.daemon, one.argv, {**of_image(), **one.env}) for one in (*of_kubernetes(), *of_compose())),
]


def settings_of(start: Start, monkeypatch: pytest.MonkeyPatch) -> BaseSettings:
    """What the command line makes of it, before anything is started.

    Raises:
        AssertionError: it refuses; the message is what it says.
    """
    made: list[BaseSettings] = []

    def main(settings: BaseSettings, **_: object) -> int:
        made.append(settings)
        return 0

    monkeypatch.setattr(f"{start.daemon}.daemon.main", main)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(app, start.argv, env=start.env)
    assert done.exit_code == 0, done.output
    (settings,) = made
    return settings


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.where)
def test_a_daemon_understands_how_it_is_started(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start.argv[0] == start.daemon
    settings = settings_of(start, monkeypatch)
    assert unknown_variables(start.env.items()) == {}
    told = " ".join(start.argv)
    if start.daemon != "agent" and start.where != "compose/controller":
        assert getattr(settings, "host") == "0.0.0.0", f"others reach it: {told}"  # noqa: B009, S104


def test_there_is_a_start_of_each_daemon_in_each_place() -> None:
    places = ("systemd", "kubernetes", "compose")
    assert [start.where for start in STARTS] == [f"{place}/{daemon}" for place in places for daemon in DAEMONS]
    assert {"GPUWARD_DATA_DIR", "GPUWARD_AGENT_DATA_DIR"} <= set(of_image())


@pytest.mark.parametrize(("argv", "env", "says"), [
    (["--gateways"], {}, "--gateways"),
    (["--port", "http"], {}, "--port"),
    ([], {"GPUWARD_LOG_FORMAT": "text"}, "log-format"),
])  # fmt: skip
def test_what_is_not_understood_is_found(
    argv: list[str], env: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match=says):
        settings_of(Start("here", "controller", ["controller", *argv], env), monkeypatch)


def files() -> list[Path]:
    deployed = [file for file in (ROOT / "deploy").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    return sorted([*deployed, ROOT / "Dockerfile", ROOT / "docker-compose.yml", ROOT / "README.md", *DOCS.glob("*.md")])


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_each_variable_that_is_named_exists(file: Path) -> None:
    assert set(NAMED.findall(file.read_text(encoding="utf-8"))) - VARIABLES == set()
