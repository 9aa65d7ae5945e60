"""The verb `label`."""

from typing import Annotated

import typer

from cli.errors import UsageError
from cli.runner import client, parse_labels
from cli.transport.paths import path_of
from cli.verbs.join_token import NetworksOption

app = typer.Typer()
label = typer.Typer(no_args_is_help=True, help="State what a worker is, whatever its host says.")
app.add_typer(label, name="label")


@label.command("worker")
def label_worker(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker.")],
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="LABEL...", help="Labels to set, each as KEY=VALUE; KEY- removes one.")
    ] = None,
    networks: NetworksOption = None,
) -> None:
    """Set or remove trusted labels of a worker, or allow addresses for its agent.

    Keys must match GPUWARD_TRUSTED_LABELS of the controller; all other labels are the agent's (--label). With
    --advertise-network these networks take the place of those that its join token named.
    """
    with client(ctx) as api:
        words = labels or []
        removals = [word for word in words if word.endswith("-") and "=" not in word]
        removed = [word.removesuffix("-") for word in removals]
        new = parse_labels(word for word in words if word not in removals)
        if not (removed or new or networks):
            raise UsageError("nothing to change; give a label, such as gpuward.io/zone=a, or --advertise-network")
        body: dict[str, object] = {"labels": dict.fromkeys(removed) | new}
        if networks:
            body["advertise_networks"] = networks
        api.patch(path_of("workers", name.removeprefix("worker/")), body)
        print(f"worker/{name.removeprefix('worker/')} changed")
