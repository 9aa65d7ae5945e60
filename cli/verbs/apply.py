"""The verb `apply`."""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from cli.errors import UsageError
from cli.manifest.files import Manifests, read_manifests
from cli.manifest.policy_stops import confirm_stops
from cli.manifest.prune import PruneOption, check_prune, confirm_prune, prune_each, to_prune
from cli.objects.gpus import gpu_names
from cli.objects.selection import SelectorOption
from cli.runner import TimeoutOption, WaitOption, client
from cli.several import Refusals
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from cli.waiting.states import Goal, Target
from cli.waiting.wait import ProgressLog, until_running
from schemas.api.apply import ApplyView
from schemas.printing import block

app = typer.Typer()
DEFAULT_TIMEOUT_S: Final = 600.0
_KINDS: Final = {"Deployment": "deployment", "UtilizationPolicy": "policy"}
FilesOption = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Manifest in YAML or JSON, a folder of them, or `-` for stdin. It can be given several times.",
    ),
]


class WaitGoal(StrEnum):
    """The goals that applied deployments can have."""

    RUNNING = Goal.RUNNING.value
    SUCCEEDED = Goal.SUCCEEDED.value


@app.command()
def apply(
    ctx: typer.Context,
    files: FilesOption,
    prune: PruneOption = False,
    selector: SelectorOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply and delete without a question.")] = False,
    wait: WaitOption = False,
    goal: Annotated[
        WaitGoal,
        typer.Option(
            "--for",
            help="What `--wait` waits for. running: all replicas run, or a task succeeded. succeeded: tasks succeeded.",
        ),
    ] = WaitGoal.RUNNING,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Create or update deployments and policies from manifests: all of them, or none. Unchanged ones change nothing.

    What policies would stop at once because of it is shown. At a terminal it is asked about first.

    With --prune the labels of --selector say which deployments these files own. What would go is shown and asked about
    before anything changes; without a terminal, add --yes. Nothing is deleted where a manifest is refused.
    """
    with client(ctx) as api:
        check_prune(selector, prune=prune)
        if goal is not WaitGoal.RUNNING and not wait:
            raise UsageError(f"--for {goal.value}: says what to wait for; add --wait")
        manifests = read_manifests(files)
        pruned = [] if selector is None else to_prune(api, manifests, selector)
        confirm_prune(pruned, yes=yes)
        confirm_stops(api, manifests, yes=yes)
        targets = _apply(api, manifests)
        refusals = Refusals()
        prune_each(api, pruned, selector, refusals)

        def until_all_run(targets: list[Target]) -> None:
            until_running(api, targets, timeout_s, ProgressLog(gpus=gpu_names(api)), Goal(goal))

        if wait:
            refusals.each([targets], until_all_run)
        refusals.report()


def _apply(api: Api, manifests: Manifests) -> list[Target]:
    with manifests.located():
        view = parse(ApplyView, api.post(path_of("apply"), manifests.body()))
    for item in view.items:
        print(f"{_KINDS[item.kind]}/{item.name} {item.outcome}", flush=True)
    gpus = gpu_names(api)
    for line in view.warnings:
        print(block(f"warning: {gpus.in_text(line)}"), file=sys.stderr, flush=True)
    return [Target(item.name, item.uid, item.generation) for item in view.items if item.kind == "Deployment"]
