"""The verb `wait`."""

from typing import Annotated

import typer

from cli.objects.gpus import gpu_names
from cli.objects.kind import bare_name
from cli.objects.kinds import DEPLOYMENTS
from cli.runner import TimeoutOption, client
from cli.transport.paths import parse, path_of
from cli.verbs.apply import DEFAULT_TIMEOUT_S
from cli.waiting.states import Goal, Target
from cli.waiting.wait import ProgressLog, until_gone, until_running, until_stopped
from schemas.api.deployments import DeploymentView

app = typer.Typer()


@app.command()
def wait(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of deployments.")],
    goal: Annotated[
        Goal,
        typer.Option(
            "--for",
            help="running: all replicas run, or a task succeeded. succeeded: a task succeeded. "
            "stopped: no instance is left.",
        ),
    ] = Goal.RUNNING,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Wait until deployments run, succeed, are stopped or are gone. Changes are printed until then.

    It exits with 1 where that can no longer come: a deployment failed, is stopped until it is started, or was deleted.
    It exits with 4 where the time is over.
    """
    with client(ctx) as api:
        progress = ProgressLog(gpus=gpu_names(api))
        wanted = list(dict.fromkeys(bare_name(DEPLOYMENTS, name) for name in names))
        if goal is Goal.GONE:
            existing = [(name, api.find(path_of("deployments", name))) for name in wanted]
            uids = {name: raw["uid"] for name, raw in existing if raw is not None}
            until_gone(api, uids, timeout_s, progress, "deployments")
            return
        views = [parse(DeploymentView, api.get(path_of("deployments", name))) for name in wanted]
        if goal is Goal.STOPPED:
            until_stopped(api, {view.name: view.uid for view in views}, timeout_s, progress)
        else:
            targets = [Target(view.name, view.uid, view.generation) for view in views]
            until_running(api, targets, timeout_s, progress, goal)
