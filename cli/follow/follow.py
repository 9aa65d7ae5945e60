"""Follows a list: on a terminal as a table in its place, else by a line for each change."""

import sys

from cli.errors import UsageError
from cli.follow.board import FOLLOWED, Board, lists_of
from cli.follow.lines import Lines
from cli.follow.watch import Lost, watch
from cli.objects.kind import Kind
from cli.objects.kinds import EVENTS, GPUS
from cli.objects.selection import must_have_labels
from cli.objects.selectors import Selector
from cli.printing.list_output import Output
from cli.printing.output import Format
from cli.terminal.screen import fit_for_screens
from cli.text.formatting import printable
from cli.transport.client import Api

_INSTEAD = {EVENTS.plural: "gpuward events -w", GPUS.plural: "gpuward top"}


def follow(
    api: Api,
    kind: Kind,
    output: Output,
    *,
    names: frozenset[str] = frozenset(),
    selector: Selector | None = None,
    deployment: str | None = None,
    with_notes: bool = False,
) -> None:
    """Follows the objects of a kind until Ctrl-C. `with_notes`: on a terminal, as `ps` has them below its table.

    Raises:
        UsageError: the watch does not tell of this kind, or it has no labels.
        CliError: see `cli.follow.watch.watch`.
    """
    if kind not in FOLLOWED:
        instead = _INSTEAD.get(kind.plural) or f"one of {', '.join(one.plural for one in FOLLOWED)}"
        raise UsageError(f"--watch: {kind.plural} cannot be followed so; use {instead}")
    if selector is not None:
        must_have_labels(kind)
    board = Board(kind, names, selector, deployment)
    for_people = isinstance(output, Format) and not output.for_programs
    screen = for_people and fit_for_screens()
    kinds = ",".join(lists_of(kind, selector, notes=with_notes and screen))
    told = watch(api, kinds=kinds, deployment=deployment)
    if screen:
        from cli.follow.table_view import TableView  # noqa: PLC0415 - only here

        TableView(board, wide=output is Format.WIDE, with_notes=with_notes).follow(told)
        return
    lines = Lines(kind, output)
    for one in told:
        if isinstance(one, Lost):
            print(printable(f"gpuward: {one.why}; trying again"), file=sys.stderr, flush=True)
        else:
            lines.print(board.take(one.events))
