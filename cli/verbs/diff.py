"""The verb `diff`."""

import typer

from cli.errors import CliError
from cli.manifest.files import read_manifests
from cli.manifest.prune import PruneOption, check_prune, to_prune
from cli.objects.selection import SelectorOption
from cli.printing.output import Format, print_data
from cli.runner import OutputOption, client
from cli.text.field_changes import change_lines
from cli.transport.paths import parse, path_of
from cli.verbs.apply import FilesOption
from schemas.api.plan import PlanView
from schemas.printing import block

app = typer.Typer()
_DIFFERENT = 1


@app.command()
def diff(
    ctx: typer.Context,
    files: FilesOption,
    prune: PruneOption = False,
    selector: SelectorOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show field by field what `apply` would change. Exit with 1 if anything differs, with 2 or more on errors."""
    with client(ctx) as api:
        try:
            check_prune(selector, prune=prune)
            manifests = read_manifests(files)
            pruned = [] if selector is None else [shown.name for shown in to_prune(api, manifests, selector)]
            with manifests.located():
                raw = api.post(path_of("plan"), manifests.body())
        except CliError as error:
            error.exit_code = max(error.exit_code, _DIFFERENT + 1)
            raise
        view = parse(PlanView, raw)
        different = bool(pruned) or any(
            change != "unchanged" for change in (*view.changes.values(), *view.policy_changes.values())
        )
        if output.for_programs:
            fields = ("changes", "policy_changes", "field_changes", "replaces")
            print_data({field: raw.get(field, {}) for field in fields} | ({"pruned": pruned} if prune else {}), output)
        else:
            _print(view)
            for name in pruned:
                print(block(f"deployment/{name}: pruned"))
    if different:
        raise typer.Exit(_DIFFERENT)


def _print(view: PlanView) -> None:
    for name, change in view.policy_changes.items():
        if change != "unchanged":
            print(block(f"policy/{name}: {change}"))
    for name, planned in view.changes.items():
        if planned != "unchanged":
            print(block("\n".join((f"deployment/{name}: {planned}", *change_lines(view, name)))))
