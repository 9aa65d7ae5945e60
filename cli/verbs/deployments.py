"""Verbs that change existing deployments: scale, stop, wake, start, restart."""

from typing import Annotated

import typer

from cli.errors import NotFoundError
from cli.objects.kinds import DEPLOYMENTS, INSTANCES
from cli.objects.names import nearest
from cli.runner import client, post, post_each
from cli.transport.near_names import did_you_mean
from cli.transport.paths import path_of
from schemas.printing import block
from schemas.units import parse_duration_s

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
    to = replicas if replicas is not None else ", ".join(f"{field} {value}" for field, value in given.items())
    post(ctx, ("deployments", name, "scale"), f"deployment/{name} scaled to {to}", given)


@app.command()
def stop(ctx: typer.Context, names: NamesArgument) -> None:
    """Stop deployments. They stay stopped until `start`, or until `apply` changes them."""
    post_each(ctx, DEPLOYMENTS, names, "stop", "stopped")


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
    result = f"is awake for {for_}" if seconds else "may sleep again"
    post(ctx, ("deployments", name, "wake"), f"deployment/{name} {result}", {"for_s": seconds})


@app.command()
def start(ctx: typer.Context, names: NamesArgument) -> None:
    """Start stopped deployments, and run ended tasks and failed instances again."""
    post_each(ctx, DEPLOYMENTS, names, "start", "started")


@app.command()
def restart(
    ctx: typer.Context,
    name: NameArgument,
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="ID", help="Only this instance of the deployment.")
    ] = None,
    pull: Annotated[
        bool,
        typer.Option("--pull", help="Take the models and images that hub and registry have now, by a new revision."),
    ] = False,
) -> None:
    """Restart the instances of a deployment, as many at a time as its `update` allows.

    With `update: rolling` replacements start first within `surge`, and old instances stop within `unavailable`; else
    one instance after another. An instance in back-off is tried now, and what has ended runs again.
    """
    if pull and instance is not None:
        raise typer.BadParameter("is of the whole deployment; leave --instance out", param_hint="--pull")
    subject = f"deployment/{name}" if instance is None else f"instance/{instance}"
    body = {"instance": instance} if instance is not None else {"pull": True} if pull else None
    with client(ctx) as api:
        try:
            api.post(path_of(DEPLOYMENTS.plural, name, "restart"), body)
        except NotFoundError as error:
            if instance is None:
                raise
            known = api.items(path_of(INSTANCES.plural), deployment=name)
            meant = did_you_mean(nearest(INSTANCES, instance, known))
            raise NotFoundError(f"{error}{meant}", error.code) from None
        print(block(f"{subject} restarts" + (" with a new revision" if pull else "")))
