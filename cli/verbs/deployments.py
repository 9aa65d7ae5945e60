"""Verbs that change existing deployments: scale, stop, wake, start, delete.

`delete` takes policies and workers as well.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.api import path_of
from cli.errors import UsageError
from cli.kinds import DEPLOYMENTS, POLICIES, WORKERS, kind_named
from cli.runner import TimeoutOption, post, post_each, run
from cli.verbs.apply import DEFAULT_TIMEOUT_S, WaitOption
from cli.wait import ProgressLog, until_gone
from schemas.units import parse_duration_s

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
NameArgument = Annotated[str, typer.Argument(help="Name of the deployment.")]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of deployments.")]


@app.command()
def scale(
    ctx: typer.Context,
    name: NameArgument,
    replicas: Annotated[int | None, typer.Argument(min=0, help="Number of instances to run.")] = None,
    low: Annotated[int | None, typer.Option("--min", min=0, help="Fewest instances; 0 lets it sleep.")] = None,
    high: Annotated[int | None, typer.Option("--max", min=1, help="Most instances.")] = None,
) -> None:
    """Set the number of replicas of a deployment, or the bounds between which it follows the requests."""
    if (replicas is None) == (low is None and high is None):
        raise typer.BadParameter("write the number of replicas, or --min, --max or both")
    body = {"replicas": replicas, "min": low, "max": high}
    given = {field: value for field, value in body.items() if value is not None}
    told = replicas if replicas is not None else ", ".join(f"{field} {value}" for field, value in given.items())
    post(ctx, ("deployments", name, "scale"), f"deployment/{name} scaled to {told}", given)


@app.command()
def stop(ctx: typer.Context, names: NamesArgument) -> None:
    """Stop deployments. They stay stopped until `start`, or until `apply` changes them."""
    post_each(ctx, names, lambda name: ("deployments", name, "stop"), lambda name: f"deployment/{name} stopped")


@app.command()
def wake(
    ctx: typer.Context,
    name: NameArgument,
    for_: Annotated[
        str, typer.Option("--for", help="How long it stays awake without requests, such as 2h; 0s ends that.")
    ] = "1h",
) -> None:
    """Wake a sleeping deployment, and keep it awake for a time."""
    try:
        seconds = parse_duration_s(for_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    told = f"is awake for {for_}" if seconds else "may sleep again"
    post(ctx, ("deployments", name, "wake"), f"deployment/{name} {told}", {"for_s": seconds})


@app.command()
def start(ctx: typer.Context, names: NamesArgument) -> None:
    """Start stopped deployments."""
    post_each(ctx, names, lambda name: ("deployments", name, "start"), lambda name: f"deployment/{name} started")


@app.command()
def delete(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[KIND] NAME", help="Kind (deployment, policy or worker; default: deployment) and name."
        ),
    ],
    wait: WaitOption = False,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
    confirm_dead: Annotated[
        bool, typer.Option("--confirm-dead", help="Confirm that nothing runs on the worker any more. Workers only.")
    ] = False,
) -> None:
    """Delete a deployment, a policy or a worker."""

    async def work(api: "Api") -> None:
        if len(words) not in (1, 2):
            raise UsageError("write `gpuward delete NAME` or `gpuward delete KIND NAME`")
        kind = kind_named(words[0], (DEPLOYMENTS, POLICIES, WORKERS)) if len(words) > 1 else DEPLOYMENTS
        if confirm_dead and kind is not WORKERS:
            raise UsageError("--confirm-dead is only valid for `gpuward delete worker NAME`")
        name = words[-1]
        path = path_of(kind.plural, name)
        uid = (await api.get(path))["uid"] if wait else ""
        await api.delete(path, confirm_dead="true" if confirm_dead else None)
        if wait:
            await until_gone(api, path, name, uid, timeout_s, ProgressLog())
        gone = wait or kind is POLICIES  # a policy has no processes that must end first
        print(f"{kind.singular}/{name} {'deleted' if gone else 'is being deleted'}")

    run(ctx, work, waits=wait)
