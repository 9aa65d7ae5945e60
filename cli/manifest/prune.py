"""`--prune`: deletes the deployments with the labels of the selector that are in none of the files."""

from collections.abc import Sequence
from typing import Annotated

import typer

from cli.errors import UsageError
from cli.objects.kinds import DEPLOYMENTS
from cli.objects.selection import selected
from cli.objects.selectors import Selector
from cli.objects.shown import Shown, delete_shown
from cli.several import Refusals
from cli.terminal.confirm import confirm_deletion
from cli.transport.client import Api
from cli.transport.paths import path_of
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import Manifest
from schemas.printing import block

PruneOption = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Then delete the deployments that have the labels of --selector and are in none of the files. "
        "Policies have no labels and stay.",
    ),
]


def check_prune(selector: Selector | None, *, prune: bool) -> None:
    """Raises `UsageError` for one of the two options, or a selector without a label, which fits every deployment."""
    if not prune:
        if selector is not None:
            raise UsageError("--selector is only of use with --prune")
        return
    if selector is None:
        raise UsageError("--prune needs --selector, such as -l app=x: the labels of what these files own")
    if not any(term.wanted for term in selector.terms):
        raise UsageError("--prune needs a selector that demands a label, such as -l app=x")


def to_prune(api: Api, manifests: Sequence[Manifest], selector: Selector) -> list[Shown]:
    """The deployments with the labels that are in no manifest. Raises `UsageError` if all would be deleted."""
    kept = {manifest.name for manifest in manifests if isinstance(manifest, DeploymentManifest)}
    if not kept:
        raise UsageError("--prune: the files have no deployment; to delete all, run: gpuward delete -l LABELS")
    raws = selected(api, DEPLOYMENTS, api.items(path_of(DEPLOYMENTS.plural)), selector)
    return [Shown.of(DEPLOYMENTS, r) for r in raws if r["name"] not in kept and r.get("deleted_at") is None]


def confirm_prune(shown: Sequence[Shown], *, yes: bool) -> None:
    confirm_deletion([f"deployment/{deployment.name}" for deployment in shown], yes=yes)


def prune_each(api: Api, shown: Sequence[Shown], selector: Selector | None, refusals: Refusals) -> None:
    def prune(deployment: Shown) -> None:
        if delete_shown(api, deployment, selector):
            print(block(f"deployment/{deployment.name} pruned"), flush=True)

    refusals.each(shown, prune)
