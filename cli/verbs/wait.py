"""The verb `wait`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cli.api import parse, path_of
from cli.kind import bare_name
from cli.kinds import DEPLOYMENTS
from cli.runner import TimeoutOption, run
from cli.verbs.apply import DEFAULT_TIMEOUT_S
from cli.wait import ProgressLog, Target, until_all_gone, until_running, until_stopped
from schemas.api.deployments import DeploymentView

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()


class State(StrEnum):
    """What a wait waits for."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@app.command()
def wait(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of deployments.")],
    state: Annotated[
        State,
        typer.Option("--for", help="running: all replicas run, or a task succeeded. stopped: no instance is left."),
    ] = State.RUNNING,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Wait until deployments run, are stopped or are gone. Changes meanwhile are printed.

    It exits with 1 where that can no longer come: one failed, is stopped until it is started, or was deleted.
    """

    async def work(api: "Api") -> None:
        progress, wanted = ProgressLog(), list(dict.fromkeys(bare_name(DEPLOYMENTS, name) for name in names))
        if state is State.GONE:
            found = [(name, await api.find(path_of("deployments", name))) for name in wanted]
            uids = {name: raw["uid"] for name, raw in found if raw is not None}
            await until_all_gone(api, uids, timeout_s, progress)
            return
        views = [parse(DeploymentView, await api.get(path_of("deployments", name))) for name in wanted]
        if state is State.STOPPED:
            await until_stopped(api, {view.name: view.uid for view in views}, timeout_s, progress)
        else:
            targets = [Target(view.name, view.uid, view.generation) for view in views]
            await until_running(api, targets, timeout_s, progress)

    run(ctx, work, waits=True)
