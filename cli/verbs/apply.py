"""The verb `apply`."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.api import parse, path_of
from cli.confirm import YesOption
from cli.manifests import read_manifests, spec_as_json
from cli.prune import PruneOption, check_prune, confirm_prune, prune_each, to_prune
from cli.runner import TimeoutOption, WaitOption, run
from cli.selection import SelectorOption
from cli.wait import ProgressLog, Target, until_running
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import Manifest
from schemas.manifest.policy import PolicyManifest
from schemas.printing import block

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
DEFAULT_TIMEOUT_S: Final = 600.0
FilesOption = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Manifest in YAML or JSON, a folder of them, or `-` for stdin. It can be given several times.",
    ),
]


@app.command()
def apply(
    ctx: typer.Context,
    files: FilesOption,
    prune: PruneOption = False,
    selector: SelectorOption = None,
    yes: YesOption = False,
    wait: WaitOption = False,
    timeout_s: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Create or update deployments and policies from manifests. An unchanged manifest changes nothing.

    With --prune the labels of --selector say which deployments these files own. What would go is shown and asked about
    before anything changes; without a terminal, add --yes. Nothing is deleted where a manifest is refused.
    """

    async def work(api: "Api") -> None:
        check_prune(selector, prune=prune)
        manifests = read_manifests(files)
        pruned = [] if selector is None else await to_prune(api, manifests, selector)
        confirm_prune(pruned, yes=yes)
        for policy in policies_in_order(manifests):
            await _apply_policy(api, policy)
        targets = [await _apply_deployment(api, one) for one in manifests if isinstance(one, DeploymentManifest)]
        await prune_each(api, pruned)
        if wait:
            await until_running(api, targets, timeout_s, ProgressLog())

    run(ctx, work, waits=wait)


def policies_in_order(manifests: list[Manifest]) -> list[PolicyManifest]:
    """The policies in the order to apply them: the new default comes last, after the old one has ceased to be it."""
    policies = [one for one in manifests if isinstance(one, PolicyManifest)]
    return sorted(policies, key=lambda policy: policy.default)


async def _apply_policy(api: "Api", manifest: PolicyManifest) -> None:
    _, outcome = await api.apply(path_of("policies", manifest.name), spec_as_json(manifest))
    print(f"policy/{manifest.name} {outcome}", flush=True)


async def _apply_deployment(api: "Api", manifest: DeploymentManifest) -> Target:
    raw, outcome = await api.apply(path_of("deployments", manifest.name), spec_as_json(manifest))
    view = parse(DeploymentView, raw)
    print(f"deployment/{view.name} {outcome}", flush=True)
    for line in view.warnings:
        print(block(f"warning: {line}"), file=sys.stderr, flush=True)
    return Target(view.name, view.uid, view.generation)
