"""The verb `plan`."""

import sys

import typer

from cli.errors import CliError
from cli.manifest.files import read_manifests
from cli.manifest.policy_stops import stop_lines
from cli.objects.gpus import gpu_names
from cli.printing.output import Format, print_data, print_lines, print_table
from cli.printing.table import Table
from cli.runner import OutputOption, client
from cli.text.explanations import layout_line
from cli.text.field_changes import change_lines
from cli.text.formatting import DASH, first_gpus, gib, or_dash
from cli.text.gpu_names import GpuNames
from cli.text.policies import rule_of
from cli.transport.paths import parse, path_of
from cli.verbs.apply import FilesOption
from schemas.api.plan import PlanItem, PlanView
from schemas.api.policies import PlannedPolicy
from schemas.printing import block

app = typer.Typer()


@app.command()
def plan(ctx: typer.Context, files: FilesOption, output: OutputOption = Format.TABLE) -> None:
    """Show what `apply` would do: changes, placements and policies. Exit with 1 if an instance does not fit."""
    with client(ctx) as api:
        manifests = read_manifests(files)
        with manifests.located():
            raw = api.post(path_of("plan"), manifests.body())
        view = parse(PlanView, raw)
        if output.for_programs:
            print_data(raw, output)
        else:
            names = GpuNames() if output is Format.WIDE else gpu_names(api)
            _print_plan(view, names, wide=output is Format.WIDE)
        # older controllers do not count an instance that preempts as one that fits
        pending = sum(not item.fits and not item.preempts for item in view.items)
        if pending:
            raise CliError(f"{pending} of {len(view.items)} instances would stay pending")


def _print_plan(view: PlanView, gpus: GpuNames, *, wide: bool) -> None:
    """`wide`: GPUs have their UUIDs."""
    if view.policy_changes:
        policies = [[f"policy/{name}", change] for name, change in view.policy_changes.items()]
        print_table(Table(["POLICY", "CHANGE"], policies), empty="")
        print()
    changes = [
        [f"deployment/{name}", change, _policy_text(view.policies.get(name))] for name, change in view.changes.items()
    ]
    print_table(Table(["DEPLOYMENT", "CHANGE", "POLICY"], changes), empty="no deployment would change")
    print()
    titles = ["INSTANCE", "FITS", "ENGINE", "WORKER", "GPUS", "PER GPU", "WHY"]
    rows = [_row(item, gpus, wide=wide) for item in view.items]
    print_table(Table(titles, rows), empty="no instance would start")
    # once for each deployment, since its instances have the same advice
    advice = {i.deployment: i.explain.advice for i in view.items if i.explain is not None and i.explain.advice}
    for name, lines in advice.items():
        print_lines("\n".join((f"\n{name}:", *(f"  {gpus.in_text(line)}" for line in lines))))
    for name in view.field_changes:
        print_lines("\n".join((f"\ndeployment/{name}:", *change_lines(view, name))))
    for name, text in view.rollouts.items():
        print_lines(f"\ndeployment/{name}: {gpus.in_text(text)}")
    if view.policy_stops is not None and (lines := stop_lines(view.policy_stops, reasons=True)):
        print_lines("\n".join(("", *lines)))
    for line in view.warnings:
        print(block(f"warning: {gpus.in_text(line)}"), file=sys.stderr)


def _row(item: PlanItem, gpus: GpuNames, *, wide: bool) -> list[str]:
    why = item.explain.message if item.explain else layout_line(item.layout) if item.layout else ""
    held = ",".join(item.gpus) or DASH if wide else gpus.in_cell(first_gpus(item.gpus))
    return [
        f"{item.deployment}#{item.instance}", _fits(item), or_dash(item.engine),
        or_dash(",".join(item.workers) or item.worker), held, gib(item.memory_mib_per_gpu), gpus.in_text(why),
    ]  # fmt: skip


def _fits(item: PlanItem) -> str:
    if item.preempts:
        return "preempts"
    return "yes" if item.fits else "no"


def _policy_text(policy: PlannedPolicy | None) -> str:
    return "none" if policy is None else f"{policy.name or 'inline'}: {rule_of(policy.spec)}"
