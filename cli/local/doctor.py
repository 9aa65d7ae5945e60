"""The verb `doctor`. It examines this host and needs `gpuward[agent]`, but no controller and no GPU."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.errors import CliError
from cli.local.options import CaOption, DataDirOption, SimulateOption, needs, validated
from cli.printing.output import Format, print_data
from cli.runner import OutputOption, complain
from cli.transport.connection import CLIENT_ENV, current_default_data_dir, read_client_env
from cli.up.hosts import AGENTS, CACHE, LOOPBACK, read_local_agents
from schemas.printing import block

app = typer.Typer()

ENV_FILE: Final = Path("/etc/gpuward/agent.env")
_OURS: Final = "GPUWARD_"
_AGENT, _JOURNAL = "agent", "journal.sqlite"  # the data folder of an agent, and a file in it
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_URL: Final = "http://unset"


@app.command()
def doctor(
    controller_url: Annotated[
        str | None, typer.Option("--controller", metavar="URL", help="URL of the controller.")
    ] = None,
    data_dir: DataDirOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the worker, with --simulate.")] = None,
    simulate: SimulateOption = None,
    proxy_port: Annotated[
        int | None, typer.Option("--proxy-port", min=0, max=65535, help="Port of the agent's proxy.")
    ] = None,
    ca: CaOption = None,
    env_file: Annotated[
        Path, typer.Option("--env-file", help="File with the agent's variables, as its systemd unit reads it.")
    ] = ENV_FILE,
    output: OutputOption = Format.TABLE,
) -> None:
    """Examine this host, and say what to do. Exit with 1 if something fails.

    Looks at the driver, GPUs, Docker, cgroups, ports, disk, engines, the controller and the clock.
    It changes nothing, and works while the agent runs. Run it as the agent's user.
    Without an agent of its own on this host it examines those of `gpuward up`; --data-dir names the folder of either.
    """
    with needs("agent"):
        from agent.doctor.doctor import Patient, examine_quietly  # noqa: PLC0415 - client verbs need no agent
        from agent.settings import AgentSettings  # noqa: PLC0415 - as above
    _take_variables(env_file)

    def patient(*, no_url: bool = False, **given: Any) -> Patient:
        settings = validated(AgentSettings, **given)
        return Patient(
            data_dir=settings.data_dir,
            cache_dir=settings.cache_dir,
            controller_urls=() if no_url else settings.controller_urls,
            ca=settings.ca,
            proxy_host=settings.proxy_host,
            proxy_port=settings.proxy_port,
            simulate=settings.simulate,
            name=settings.name,
            engine_user=settings.engine_user,
            docker=settings.docker_address(),
            engine_environment=settings.engine_environment,
            variables=dict(os.environ),
            token=settings.join_token is not None or settings.join_token_file is not None,
        )

    no_url = controller_url is None and "GPUWARD_AGENT_CONTROLLER_URL" not in os.environ
    patients = []
    if no_url and (name, simulate, proxy_port, ca) == (None,) * 4:
        patients = [patient(**given) for given in _agents_of_up(data_dir)]
    if not patients:
        patients = [
            patient(
                no_url=no_url,
                controller_url=_NO_URL if no_url else controller_url,
                data_dir=data_dir,
                name=name,
                simulate=simulate,
                proxy_port=proxy_port,
                ca=ca,
            )
        ]
    findings = examine_quietly(patients)
    failed = sum(finding.status == "fails" for finding in findings)
    if output.for_programs:
        print_data({"ok": failed == 0, "findings": [asdict(finding) for finding in findings]}, output)
    else:
        _print(findings)
    if failed:
        complain(CliError(f"{failed} of {len(findings)} findings fail; what to do stands below each"))


def _agents_of_up(data_dir: Path | None) -> list[dict[str, Any]]:
    """The settings of the agents of `gpuward up` on this data folder; None: the default folder.

    Empty where this host has an agent of its own, or where the folder is not one of `up`.
    """
    if data_dir is None and (
        "GPUWARD_AGENT_DATA_DIR" in os.environ or os.access(current_default_data_dir() / _AGENT / _JOURNAL, os.F_OK)
    ):
        return []
    folder = (data_dir or current_default_data_dir()).expanduser().absolute()
    env = read_client_env(folder / CLIENT_ENV)
    if "GPUWARD_URL" not in env:
        return []
    user = None
    if os.geteuid() == 0:
        from agent.daemon import accounts_for_engines  # noqa: PLC0415 - as above

        user, _ = accounts_for_engines(folder.parent, Path(sys.executable), Path(sys.executable).resolve())
    return [
        {
            "controller_url": env["GPUWARD_URL"],
            "ca": env.get("GPUWARD_CA"),
            "name": host.name,
            "simulate": host.simulate,
            "data_dir": folder / AGENTS / host.name,
            "cache_dir": folder / CACHE,
            "proxy_host": LOOPBACK,
            "engine_user": user,
        }
        for host in read_local_agents(folder)
    ]


def _take_variables(env_file: Path) -> None:
    """Takes all variables from the agent's file: `HF_HOME`, `DOCKER_HOST` and PATH matter to it, too."""
    # the caller's environment overrides our variables, and not others, since each shell has a PATH
    for key, value in read_client_env(env_file).items():
        if key.startswith(_OURS):
            os.environ.setdefault(key, value)
        elif _NAME.fullmatch(key) and "\0" not in value:
            os.environ[key] = value


def _print(findings: Sequence[Any]) -> None:
    for finding in findings:
        print(block(f"{finding.status:<8} {finding.check:<11} {finding.message}"))
        if finding.remedy:
            print(block(f"{'':<20} do: {finding.remedy}"))
