"""Verbs about Gpuward itself: audit, version."""

from typing import TYPE_CHECKING

import typer

from cli.answers import parse, path_of
from cli.errors import CliError
from cli.output import Format, print_data, print_table
from cli.verb import OutputOption, run
from schemas.api.audit import AuditView
from schemas.version import __version__

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()


@app.command()
def audit(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Check the invariants; ends with 1 if one is broken."""

    async def work(api: "Api") -> None:
        raw = await api.get(path_of("audit"))
        view = parse(AuditView, raw)
        if output.for_programs:
            print_data(raw, output)
        elif view.ok:
            print(f"{len(view.checked)} invariants hold")
        else:
            rows = [[violation.invariant, violation.message] for violation in view.violations]
            print_table(["INVARIANT", "VIOLATION"], rows, empty="")
        if not view.ok:
            raise CliError(f"{len(view.violations)} violations of {len(view.checked)} invariants")

    run(ctx, work)


@app.command()
def version() -> None:
    """Print this program's version."""
    print(__version__)
