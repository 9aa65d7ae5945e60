"""What the verbs that report have in common: how far back they look, and their formats."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from cli.runner import parse_seconds

WEEK_S: Final = 7 * 86_400.0
SinceOption = Annotated[
    float,
    typer.Option(
        "--since",
        parser=parse_seconds,
        metavar="DURATION",
        show_default="7d",
        help="Start of the report as time before now, such as 7d or 12h.",
    ),
]


class ReportFormat(StrEnum):
    """An output format of a report."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
