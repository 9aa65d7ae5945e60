"""The verb `defrag`."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from cli.errors import CliError, UsageError
from cli.manifest.files import read_manifests
from cli.objects.gpus import gpu_names
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import OutputOption, client
from cli.text.formatting import age, first_gpus, gib, or_dash
from cli.text.gpu_names import GpuNames
from cli.transport.paths import parse, path_of
from schemas.api.defrag import DefragView, RelocationsView
from schemas.printing import block, first_of

app = typer.Typer()
_NAMED: Final = 8  # instances in one line


@app.command()
def defrag(
    ctx: typer.Context,
    plan: Annotated[bool, typer.Option("--plan", help="Show the relocations without starting them.")] = False,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Start the relocations. Each replacement runs before the old instance stops."),
    ] = False,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Also free capacity for the deployments in this manifest, as of `apply`.",
        ),
    ] = None,
    any_priority: Annotated[
        bool,
        typer.Option("--any-priority", help="Also relocate instances of a higher priority than those that shall fit."),
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Relocate running instances so that pending ones fit. Without a flag, show the progress of earlier relocations.

    Exit with 1 if some instances would still not fit.
    """
    if plan and apply:
        raise typer.BadParameter("--plan and --apply cannot be used together")
    with client(ctx) as api:
        if not plan and not apply:
            if files:
                raise UsageError("--file requires --plan or --apply")
            _print_relocations(api.get(path_of("defrag")), output)
            return
        manifests = read_manifests(files or [])
        body: dict[str, Any] = {"apply": apply, **manifests.body()}
        if any_priority:
            body["any_priority"] = True
        with manifests.located(*body):
            raw = api.post(path_of("defrag"), body)
        view = parse(DefragView, raw)
        if output.for_programs:
            print_data(raw, output)
        else:
            _print_plan(view, GpuNames() if output is Format.WIDE else gpu_names(api))
        if view.left:
            raise CliError(f"no relocations free enough capacity for {first_of(view.left, _NAMED)}")


def _print_plan(view: DefragView, gpus: GpuNames) -> None:
    rows = [
        [
            m.instance,
            ",".join(m.workers),
            ",".join(m.to_workers),
            gpus.in_cell(first_gpus(m.to_gpus)),
            gib(m.memory_mib),
        ]
        for m in view.moves
    ]
    empty = "no relocations are planned" if view.left else "no relocations are needed"
    print_table(Table(["INSTANCE", "FROM", "TO", "GPUS", "MEMORY"], rows), empty=empty)
    if view.fits:
        print(block(f"\nwill fit: {first_of(view.fits, _NAMED)}"))
    if view.applied:
        print("relocations started; see their progress with `gpuward defrag`")


def _print_relocations(raw: Any, output: Format) -> None:
    if output.for_programs:
        print_data(raw, output)
        return
    now = datetime.now(UTC)
    rows = [
        [m.instance, m.state, ",".join(m.to_workers), or_dash(m.copy_name), age(m.created_at, now), m.message]
        for m in parse(RelocationsView, raw).items
    ]
    print_table(Table(["INSTANCE", "STATE", "TO", "COPY", "AGE", "MESSAGE"], rows), empty="no relocations found")
