"""The verb `audit`."""

from typing import TYPE_CHECKING

import typer

from cli.api import parse, path_of
from cli.errors import CliError
from cli.output import Format, print_data, print_table
from cli.runner import OutputOption, run
from cli.table import Table
from schemas.api.audit import AuditView

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()


@app.command()
def audit(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Check the invariants of the ledger. Exit with 1 if one is violated."""

    async def work(api: "Api") -> None:
        raw = await api.get(path_of("audit"))
        view = parse(AuditView, raw)
        if output.for_programs:
            print_data(raw, output)
        elif view.ok:
            print(f"{len(view.checked)} invariants hold")
        else:
            rows = [[violation.invariant, violation.message] for violation in view.violations]
            print_table(Table(["INVARIANT", "VIOLATION"], rows), empty="")
        if not view.ok:
            raise CliError(f"{len(view.violations)} violations; {len(view.checked)} invariants were checked")

    run(ctx, work)
