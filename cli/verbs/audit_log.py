"""The verb `audit-log`: list, and verify."""

from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Final

import typer

from cli.errors import CliError
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import OutputOption, client
from cli.text.formatting import or_dash, printable
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from schemas.api.audit import AuditLogEntry, AuditLogVerification

app = typer.Typer()
_log = typer.Typer(invoke_without_command=True)
app.add_typer(_log, name="audit-log")
_DEFAULT_LIMIT: Final = 100
_MOST: Final = 1_000_000


class LogFormat(Enum):
    """Formats of `-o`."""

    TABLE = "table"
    JSONL = "jsonl"


@_log.callback()
def audit_log(
    ctx: typer.Context,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="List only entries of this key or agent.")
    ] = None,
    about: Annotated[
        str | None,
        typer.Option("--for", metavar="PATH", help="List only entries of this object, such as deployments/chat."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="List only later ones: 10m, or 2026-11-23T14:05:00Z.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="List only earlier ones, likewise.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", help="List only this outcome: done, refused, failed or cut.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_MOST, help="Number of entries, the newest ones.")
    ] = _DEFAULT_LIMIT,
    output: Annotated[
        LogFormat, typer.Option("--output", "-o", help="Format; `jsonl` is one JSON object a line, for exports.")
    ] = LogFormat.TABLE,
) -> None:
    """List changes, and reads of secrets and logs: by which key, from where, and with which outcome. Newest first."""
    if ctx.invoked_subcommand is not None:
        return
    with client(ctx) as api:
        only = {"actor": actor, "object": about, "after": since, "before": until, "outcome": outcome}
        raws = api.items(path_of("audit-log"), limit=limit, **only)
        if output is LogFormat.JSONL:
            for raw in raws:
                print_data(raw, Format.JSON, in_a_row=True)
            return
        zone = datetime.now(UTC).astimezone().tzinfo
        rows = [
            [
                f"{entry.at.astimezone(zone):%Y-%m-%d %H:%M:%S}", or_dash(entry.actor), or_dash(entry.address),
                entry.action, printable(entry.object), entry.outcome, or_dash(str(entry.status or "")),
                or_dash(entry.code),
            ]
            for entry in (parse(AuditLogEntry, raw) for raw in raws)
        ]  # fmt: skip
        titles = ["TIME", "ACTOR", "FROM", "ACTION", "OBJECT", "OUTCOME", "STATUS", "CODE"]
        print_table(Table(titles, rows, []), empty="no entries")


@_log.command()
def verify(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Show entries that were removed from the audit log or changed in it. Exit with 1 if there are any.

    Entries are sealed within minutes under the key that encrypts secrets. Without a key nothing shows.
    """
    with client(ctx) as api:
        raw = _read_all(api)
        view = parse(AuditLogVerification, raw)
        if output.for_programs:
            print_data(raw, output)
        else:
            _show(view)
        if view.findings:
            raise CliError(f"{len(view.findings)} findings: the audit log is not as it was written")


def _read_all(api: Api) -> dict[str, Any]:
    """The last page, with the sum of checked entries and the findings of all pages."""
    checked, findings, cursor = 0, [], None
    while True:
        page: dict[str, Any] = api.get(path_of("audit-log", "verify"), cursor=cursor)
        checked += page["checked"]
        findings += [finding for finding in page["findings"] if finding not in findings]
        cursor = page["next"]
        if cursor is None:
            return {**page, "checked": checked, "findings": findings}


def _show(view: AuditLogVerification) -> None:
    rows = [[finding.kind, printable(finding.message)] for finding in view.findings]
    if rows:
        print_table(Table(["FINDING", "WHAT"], rows), empty="")
    if not view.protected:
        print(printable(f"not protected: {view.reason}"))
        return
    zone = datetime.now(UTC).astimezone().tzinfo
    since = f"{view.since.astimezone(zone):%Y-%m-%d %H:%M:%S}" if view.since else "?"
    print(f"{view.checked} entries checked, ids {view.anchor_id + 1} to {view.sealed_id}; sealed since {since}")
    if view.unsealed:
        print(f"{view.unsealed} newer entries are not sealed yet")
