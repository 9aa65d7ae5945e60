"""The verbs of rollouts: status, pause, resume, undo, history."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli.errors import CliError
from cli.objects.gpus import gpu_names
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import OutputOption, TimeoutOption, client, post
from cli.text.field_changes import change_line
from cli.text.rollouts import HISTORY_TITLES, history_rows, rollout_state
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from cli.verbs.apply import DEFAULT_TIMEOUT_S
from cli.waiting.states import WaitState
from cli.waiting.wait import ProgressLog, until_rolled_out
from schemas.api.deployments import DeploymentView, RevisionDiff, RevisionList
from schemas.printing import block

app = typer.Typer()
rollout = typer.Typer(no_args_is_help=True, help="Manage the rollout of a deployment's newest revision.")
app.add_typer(rollout, name="rollout")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the deployment.")]


@rollout.command()
def status(
    ctx: typer.Context,
    name: NameArgument,
    watch: Annotated[bool, typer.Option("--watch/--no-watch", help="Wait until it is complete.")] = True,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Wait until the newest revision is rolled out. Exits with 1 where it fails, with 4 after the timeout."""
    with client(ctx) as api:
        view = parse(DeploymentView, api.get(path_of("deployments", name)))
        state, line = rollout_state(view, view.uid)
        if state is WaitState.WAITING and watch:
            line = until_rolled_out(api, name, view.uid, timeout_s, ProgressLog(gpus=gpu_names(api)))
        elif state is WaitState.FAILED:
            raise CliError(line)
        print(block(line))


@rollout.command()
def pause(ctx: typer.Context, name: NameArgument) -> None:
    """Halt the present rollout and later ones. What runs goes on."""
    post(ctx, ("deployments", name, "rollout", "pause"), f"deployment/{name} rollout paused")


@rollout.command()
def resume(ctx: typer.Context, name: NameArgument) -> None:
    """Let a paused rollout go on, or try one that has failed or was aborted once more."""
    post(ctx, ("deployments", name, "rollout", "resume"), f"deployment/{name} rollout resumed")


@rollout.command()
def undo(
    ctx: typer.Context,
    name: NameArgument,
    to: Annotated[int | None, typer.Option("--to", min=1, metavar="REVISION", help="Revision to go back to.")] = None,
) -> None:
    """Go back to the revision before, or to another one. Replicas and other settings in place stay as they are."""
    with client(ctx) as api:
        body = {} if to is None else {"revision": to}
        raw = api.post(path_of("deployments", name, "rollout", "undo"), body)
        print(block(f"deployment/{name} goes back to revision {parse(DeploymentView, raw).status.revision}"))


@rollout.command()
def history(
    ctx: typer.Context,
    name: NameArgument,
    diff: Annotated[
        tuple[int, int] | None,
        typer.Option("--diff", metavar="OLD NEW", help="Show field by field how two revisions differ."),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the revisions of a deployment, the one that was applied last first."""
    with client(ctx) as api:
        if diff is not None:
            _compare(api, name, diff, output)
            return
        raw = api.get(path_of("deployments", name, "revisions"))
        if output.for_programs:
            print_data(raw, output)
            return
        rows = history_rows(parse(RevisionList, raw).items, datetime.now(UTC))
        print_table(Table(HISTORY_TITLES, rows), empty="no revisions")


def _compare(api: Api, name: str, revisions: tuple[int, int], output: Format) -> None:
    old, new = revisions
    raw = api.get(path_of("deployments", name, "revisions", "diff"), **{"from": old, "to": new})
    if output.for_programs:
        print_data(raw, output)
        return
    lines = [change_line(one) for one in parse(RevisionDiff, raw).fields]
    head = f"deployment/{name}: revision {old} -> {new}"
    print(block("\n".join((f"{head}:", *lines)) if lines else f"{head}: no field differs"))
