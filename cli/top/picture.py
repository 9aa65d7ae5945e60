"""A picture of the live `top`: totals, the rows that fit, and a line for the keys. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cli.printing.table import Table, cells, table_lines
from cli.text.formatting import DASH, gib, percent, printable, span
from cli.text.sparkline import Values, sparkline
from cli.top.model import HELP, State, falls, picked
from cli.top.rows import COLUMNS, GRAPH, SORTED, Row
from cli.top.snapshot import Snapshot
from schemas.printing import first_of

_GRAPH_COLUMNS: Final = 30
_GAP: Final = "  "
_SHOWN_NAMES: Final = 3
_LEAST_TABLE: Final = 4  # lines: titles, two rows, the line for the keys
_ESCAPE: Final = "\x1b"
_PLAIN: Final = "\x1b[0m"


class Picture(NamedTuple):
    """The lines of a picture, and numbers for keys and reads."""

    lines: list[str]
    rows: int  # number of rows that pass the filter
    page: int  # number of rows that fit
    graphs: list[str]  # UUIDs of the GPUs whose graph is shown


class Data(NamedTuple):
    """The snapshot, its rows, the graphs by UUID, and the present problem."""

    snapshot: Snapshot
    rows: Sequence[Row]
    series: Mapping[str, Values]
    note: str = ""


def picture_of(state: State, data: Data, size: tuple[int, int], *, colours: bool = False) -> Picture:
    """`size`: columns and lines of the terminal."""
    columns, lines = size
    head = head_lines(data, columns)[: max(1, lines - _LEAST_TABLE)]
    fitting = picked(state, data.rows)
    page = max(1, lines - len(head) - 2)
    first = min(state.first, max(0, len(fitting) - page))
    shown = fitting[first : first + page]
    table = _table(data, fitting, shown, columns, colours=colours)
    table += [""] * (page + 1 - len(table))
    drawn = [cut(line, columns) for line in [*head, *table, _keys(state, first, len(shown), len(fitting), data)]]
    graphs = [row.gpu for row in shown if row.gpu is not None] if _title(data.snapshot) in table[0] else []
    return Picture(drawn[:lines], len(fitting), page, list(dict.fromkeys(graphs)))


def head_lines(data: Data, columns: int) -> list[str]:
    snapshot = data.snapshot
    where = f"worker {snapshot.scope} of {snapshot.url}" if snapshot.scope else snapshot.url
    lines = [printable(f"{where}  {snapshot.now.astimezone():%H:%M:%S}"), *_filled(totals(snapshot), columns)]
    lines += [printable(note) for note in (dry_run(snapshot), data.note) if note]
    return lines


def totals(snapshot: Snapshot) -> list[str]:
    """Totals of all workers. An unknown total is `-`; a total of some workers has their number."""
    status = [worker.status for worker in snapshot.workers]
    known = [worker for worker in status if worker.gpus_known]
    ready = sum(worker.state == "ready" for worker in status)
    complete = len(snapshot.gpus) >= snapshot.gpus_in_all
    held = str(sum(bool(gpu.status.claims) for gpu in snapshot.gpus)) if complete else DASH
    in_all = str(snapshot.gpus_in_all) if known or snapshot.gpus_in_all or not status else DASH
    claimed, memory = (sum(getattr(worker, field) for worker in known) for field in ("claimed_mib", "memory_mib"))
    sums = f"{gib(claimed)} of {gib(memory)}" if known or not status else f"{DASH} of {DASH}"
    unread = f" (known of {len(known)} workers)" if 0 < len(known) < len(status) else ""
    used = [gpu.status.utilization for gpu in snapshot.gpus if gpu.status.utilization is not None]
    mean = percent(sum(used) / len(used) if used else None)
    parts = [
        f"{ready} of {len(status)} workers ready",
        f"{held if in_all != DASH else DASH} of {in_all} GPUs held",
        f"{sums} claimed{unread}",
        f"mean utilization {mean} ({len(used)} of {in_all} GPUs)",
    ]
    return parts if snapshot.pending is None else [*parts, f"{snapshot.pending} pending"]


def dry_run(snapshot: Snapshot) -> str:
    """A line about instances that policies in dry run would stop; empty without such instances."""
    judged = ((name, view.status.utilization) for name, view in snapshot.instances.items())
    names = [
        name
        for name, judgement in judged
        if judgement is not None and judgement.dry_run and judgement.verdict == "idle" and judgement.action != "notify"
    ]
    return f"a dry run would stop {first_of(sorted(names), _SHOWN_NAMES)}" if names else ""


def _filled(parts: Sequence[str], columns: int) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= columns:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def _title(snapshot: Snapshot) -> str:
    return f"LAST {span(snapshot.window_s).upper()}"


def _table(data: Data, fitting: Sequence[Row], shown: Sequence[Row], columns: int, *, colours: bool) -> list[str]:
    """Titles and shown rows. All fitting rows determine the widths, so that scrolling does not move columns."""
    titles = [_title(data.snapshot) if column.title == GRAPH else column.title for column in COLUMNS]
    graph = next(n for n, column in enumerate(COLUMNS) if column.title == GRAPH)
    ranked = sorted((n for n, column in enumerate(COLUMNS) if column.rank), key=lambda n: -COLUMNS[n].rank)
    widest = [max((row.cells[n] for row in fitting), key=cells, default=DASH) for n in range(len(COLUMNS))]
    widest[graph] = "." * _GRAPH_COLUMNS
    rows = [widest]
    for row in shown:
        drawn = sparkline(data.series.get(row.gpu or "", ()), _GRAPH_COLUMNS)
        rows.append([drawn if n == graph else cell for n, cell in enumerate(row.cells)])
    title, _, *lines = table_lines(Table(titles, rows, [titles[n] for n in ranked]), columns, colours=colours)
    return [title, *lines]


def _keys(state: State, first: int, shown: int, fitting: int, data: Data) -> str:
    """The last line: the typed filter, the keys, or the range and order of the rows."""
    if state.typing:
        return f"/{state.filter}_  Enter keeps it, Esc clears it"
    if state.help:
        return HELP
    direction = "highest first" if falls(state) else "lowest first"
    rows = f"{first + 1}-{first + shown} of {fitting}" if fitting else f"0 of {len(data.rows)}"
    parts = [f"rows {rows}", f"by {SORTED[state.sort].title}, {direction}"]
    if state.filter:
        parts.insert(1, f"filter {state.filter!r}")
    if len(data.snapshot.gpus) < data.snapshot.gpus_in_all:
        parts.append(f"{data.snapshot.gpus_in_all - len(data.snapshot.gpus)} GPUs unknown")
    return _GAP.join([*parts, "? keys"])


def cut(line: str, columns: int) -> str:
    """The line, with an ellipsis where the terminal would break it. Colours take no columns."""
    if _ESCAPE not in line and cells(line) <= columns:
        return line
    taken, at, end = 0, 0, 0  # `end`: the place of an ellipsis
    while at < len(line):
        if line[at] == _ESCAPE:
            at = line.index("m", at) + 1
            continue
        taken += cells(line[at])
        if taken > columns:
            return line[:end] + "\N{HORIZONTAL ELLIPSIS}" + (_PLAIN if _ESCAPE in line else "")
        at += 1
        if taken < columns:
            end = at
    return line
