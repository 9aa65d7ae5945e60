"""The verb `audit`."""

import json
from typing import Annotated, Any

import typer

from cli.errors import CliError
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import OutputOption, client
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from schemas.api.audit import AuditView, RepairView

app = typer.Typer()


@app.command()
def audit(
    ctx: typer.Context,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended without guessing. It needs an admin's key.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: print what would be changed, and change nothing.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Check the invariants of the ledger. Exit with 1 if one is violated.

    With `--repair` what is certain is mended in one transaction, such as counters that differ from a count. What is
    left is printed with what to do about it.
    """
    if dry_run and not repair:
        raise typer.BadParameter("--dry-run needs --repair")
    with client(ctx) as api:
        if repair:
            _repair(api, output, dry_run=dry_run)
        else:
            _check(api, output)


def _check(api: Api, output: Format) -> None:
    raw = api.get(path_of("audit"))
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


def _repair(api: Api, output: Format, *, dry_run: bool) -> None:
    raw = api.post(path_of("audit", "repair"), dry_run="true" if dry_run else None)
    view = parse(RepairView, raw)
    if output.for_programs:
        print_data(raw, output)
    else:
        _show(view)
    if not view.ok:
        raise CliError(f"{len(view.left)} violations are left")


def _show(view: RepairView) -> None:
    if view.mended:
        rows = [[fix.invariant, fix.object, _values(fix.before), _values(fix.after)] for fix in view.mended]
        print_table(Table(["INVARIANT", "OBJECT", "BEFORE", "AFTER"], rows), empty="")
    verb = "would be made" if view.dry_run else "made"
    print(f"{view.changes} changes {verb}" if view.changes else "nothing to mend")
    if view.left:
        left = [[violation.invariant, violation.message, violation.way_out] for violation in view.left]
        print_table(Table(["INVARIANT", "LEFT", "WHAT TO DO"], left), empty="")


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items()) or "deleted"
