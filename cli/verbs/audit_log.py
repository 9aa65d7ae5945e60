"""The verb `audit-log`."""

from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.api import parse, path_of
from cli.formatting import or_dash, printable
from cli.output import Format, print_data, print_table
from cli.runner import run
from cli.table import Table
from schemas.api.audit_log import AuditLogEntry

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_DEFAULT_LIMIT: Final = 100
_MOST: Final = 1_000_000


class LogFormat(Enum):
    """An output format of the log."""

    TABLE = "table"
    JSONL = "jsonl"


@app.command("audit-log")
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

    async def work(api: "Api") -> None:
        only = {"actor": actor, "object": about, "after": since, "before": until, "outcome": outcome}
        found = await api.items(path_of("audit-log"), limit=limit, **only)
        if output is LogFormat.JSONL:
            for raw in found:
                print_data(raw, Format.JSON, in_a_row=True)
            return
        zone = datetime.now(UTC).astimezone().tzinfo
        rows = [
            [
                f"{one.at.astimezone(zone):%Y-%m-%d %H:%M:%S}", or_dash(one.actor), or_dash(one.address), one.action,
                printable(one.object), one.outcome, or_dash(str(one.status or "")), or_dash(one.code),
            ]
            for one in (parse(AuditLogEntry, raw) for raw in found)
        ]  # fmt: skip
        titles = ["TIME", "ACTOR", "FROM", "ACTION", "OBJECT", "OUTCOME", "STATUS", "CODE"]
        print_table(Table(titles, rows, []), empty="no entries")

    run(ctx, work)
