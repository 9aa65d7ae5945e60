"""The verb `doctor`. It looks at this host and needs `gpuward[agent]`, but no controller and no GPU."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.connection import read_client_env
from cli.daemon_options import DataDirOption, SimulateOption, missing_library
from cli.daemon_settings import validated
from cli.errors import CliError
from cli.output import Format, print_data
from cli.runner import OutputOption, complain
from schemas.printing import block

app = typer.Typer()

ENV_FILE: Final = Path("/etc/gpuward/agent.env")
_OURS: Final = "GPUWARD_"
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
    env_file: Annotated[
        Path, typer.Option("--env-file", help="File with the agent's variables, as its systemd unit reads it.")
    ] = ENV_FILE,
    output: OutputOption = Format.TABLE,
) -> None:
    """Examine this host, and say what to do. Exit with 1 if something fails.

    Looks at the driver, GPUs, Docker, cgroups, ports, disk, engines, the controller and the clock.
    It changes nothing, and works while the agent runs. Run it as the agent's user.
    """
    try:
        from agent.doctor.doctor import Patient, examine_quietly  # noqa: PLC0415 - client verbs need no agent
        from agent.settings import AgentSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(missing_library(error, "agent"))
    of_file = read_client_env(env_file)
    for key, value in of_file.items():
        if key.startswith(_OURS):
            os.environ.setdefault(key, value)
    no_url = controller_url is None and "GPUWARD_AGENT_CONTROLLER_URL" not in os.environ
    settings = validated(
        AgentSettings,
        controller_url=_NO_URL if no_url else controller_url,
        data_dir=data_dir,
        name=name,
        simulate=simulate,
        proxy_port=proxy_port,
    )
    patient = Patient(
        data_dir=settings.data_dir,
        cache_dir=settings.cache_dir,
        controller_urls=() if no_url else settings.controller_urls,
        ca=settings.ca,
        proxy_host=settings.proxy_host,
        proxy_port=settings.proxy_port,
        simulate=settings.simulate,
        name=settings.name,
        engine_user=settings.engine_user,
        engine_environment=settings.engine_environment,
        variables={**os.environ, **of_file},
        token=settings.join_token is not None or settings.join_token_file is not None,
    )
    findings = examine_quietly(patient)
    failed = sum(finding.status == "fails" for finding in findings)
    if output.for_programs:
        print_data({"ok": failed == 0, "findings": [asdict(finding) for finding in findings]}, output)
    else:
        _print(findings)
    if failed:
        complain(CliError(f"{failed} of {len(findings)} findings fail; what to do stands below each"))


def _print(findings: Sequence[Any]) -> None:
    for finding in findings:
        print(block(f"{finding.status:<8} {finding.check:<11} {finding.message}"))
        if finding.remedy:
            print(block(f"{'':<20} do: {finding.remedy}"))
