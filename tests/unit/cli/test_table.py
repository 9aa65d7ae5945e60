"""Tables at the widths of terminals: names stay whole, columns leave by rank, and sentences stand below their row."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.printing.table import TEXTS, Table, cells, table_lines
from support.builders.api_objects import deployment, instance
from support.standins.api import KEY

WHY = "0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch; capacity is reserved for train-9x2"
INSTANCES = Table(
    ["NAME", "DEPLOYMENT", "PHASE", "WORKER", "GPUS", "RESTARTS", "AGE", "IDLE", "STOPS IN", "WHY"],
    [
        ["chat-m42zqpkn", "chat", "running", "gpu-1", "bd020789", "0", "3m", "50s", "9m10s", "-"],
        ["a-longer-name-x8fj22qw", "a-longer-name", "pending", "-", "-", "0", "5h", "-", "-", WHY],
    ],
    ["RESTARTS", "STOPS IN", "DEPLOYMENT", "IDLE", "GPUS", "AGE", "WORKER"],
)
AT_80 = """\
NAME                    DEPLOYMENT     PHASE    WORKER  GPUS      AGE  IDLE
chat-m42zqpkn           chat           running  gpu-1   bd020789  3m   50s
a-longer-name-x8fj22qw  a-longer-name  pending  -       -         5h   -
    0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1
    arch; capacity is reserved for train-9x2
"""
AT_120 = """\
NAME                    DEPLOYMENT     PHASE    WORKER  GPUS      RESTARTS  AGE  IDLE  STOPS IN
chat-m42zqpkn           chat           running  gpu-1   bd020789  0         3m   50s   9m10s
a-longer-name-x8fj22qw  a-longer-name  pending  -       -         0         5h   -     -
    0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch; capacity is reserved for train-9x2
"""


def shown(table: Table, width: int | None) -> str:
    return "\n".join(table_lines(table, width)) + "\n"


@pytest.mark.parametrize(("width", "lines"), [(80, AT_80), (120, AT_120)])
def test_a_narrow_terminal_gets_fewer_columns(width, lines):
    assert shown(INSTANCES, width) == lines


def test_a_wide_terminal_gets_one_line_a_row():
    assert len(shown(INSTANCES, 250).splitlines()) == len(shown(INSTANCES, None).splitlines()) == 3
    assert shown(INSTANCES, None).splitlines()[2].endswith(WHY)


def test_columns_without_a_value_leave_first():
    table = Table(["NAME", "IDLE", "AGE"], [["a" * 30, "-", "3m"], ["b", "-", "1m"]], ["AGE"])
    assert shown(table, 40).splitlines()[0].split() == ["NAME", "AGE"]
    assert shown(table, 41).splitlines()[0].split() == ["NAME", "IDLE", "AGE"]


def test_a_sentence_is_told_once_also_where_its_column_has_a_rank():
    table = Table(["NAME", "WHY"], [["a", "no room"]], ["WHY"])
    assert table_lines(table, 5) == ["NAME", "a", "    no room"]


def test_wide_characters_keep_the_columns_in_line():
    assert [cells(text) for text in ("模型", "e\u0301", "ok")] == [4, 1, 2]
    first, second = table_lines(Table(["NAME", "AGE"], [["模型", "3m"]]), None)
    assert first == "NAME  AGE"
    assert second == "模型  3m"


def test_states_are_coloured_and_take_no_more_room():
    plain = table_lines(Table(["NAME", "PHASE", "AGE"], [["a", "running", "3m"], ["b", "failed", "1m"]]), 80)
    coloured = table_lines(
        Table(["NAME", "PHASE", "AGE"], [["a", "running", "3m"], ["b", "failed", "1m"]]), 80, colours=True
    )
    assert "\x1b[32mrunning\x1b[0m" in coloured[1]
    assert "\x1b[31mfailed\x1b[0m" in coloured[2]
    for mark in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m"):
        coloured = [line.replace(mark, "") for line in coloured]
    assert coloured == plain


@st.composite
def tables(draw: st.DrawFn) -> Table:
    titles = ["NAME", *draw(st.lists(st.sampled_from(["PHASE", "AGE", "WORKER", "WHY", "IDLE"]), unique=True))]
    cell = st.text(st.characters(categories=("L", "N")), max_size=30) | st.just("-")
    rows = draw(st.lists(st.lists(cell, min_size=len(titles), max_size=len(titles)), min_size=1, max_size=5))
    return Table(titles, rows, draw(st.permutations([title for title in titles[1:] if title != "WHY"])))


@given(tables(), st.integers(1, 150))
def test_no_cell_is_broken_and_what_fits_is_shown(table: Table, width: int) -> None:
    lines = table_lines(table, width)
    kept = lines[0].split()
    assert kept[0] == "NAME"
    for title, column in zip(table.titles, zip(*table.rows, strict=True), strict=True):
        for cell in column:
            if title in kept or (title in TEXTS and cell != "-"):
                assert cell in "\n".join(lines)
    if len(kept) > 1 and all(title not in TEXTS for title in kept):
        assert all(cells(line) <= width or line.startswith("    ") for line in lines)
    assert len(table_lines(table, None)) == len(table.rows) + 1


def on_a_terminal(columns: int, *words: str, **env: str) -> str:
    """What the command line prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    called = subprocess.Popen(
        [sys.executable, "-m", "cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"HOME": "/nowhere", **env},
    )
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(ours, 65536):
            printed += part
    except OSError:  # the end of a terminal
        pass
    finally:
        os.close(ours)
    assert called.wait(30) == 0, printed
    return printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_terminal_gets_lines_that_it_does_not_break(api, columns):
    chat = deployment("chat", "progressing")
    api.add(chat)
    api.add(instance(chat, 1, "running", worker="gpu-1"))
    api.add(instance(chat, 2, "pending", message=WHY))
    plain = on_a_terminal(columns, "ps", GPUWARD_URL=api.url, GPUWARD_API_KEY=KEY, TERM="dumb")
    lines = plain.splitlines()
    assert all(len(line) <= columns for line in lines), plain
    assert lines[0].split()[0] == "NAME"
    assert "chat-2" in plain
    assert " ".join(plain.split()).count(WHY) == 1
    assert "\x1b" not in plain
    coloured = on_a_terminal(columns, "ps", GPUWARD_URL=api.url, GPUWARD_API_KEY=KEY, TERM="xterm")
    assert "\x1b[32mrunning\x1b[0m" in coloured
    assert "\x1b" not in on_a_terminal(
        columns, "ps", GPUWARD_URL=api.url, GPUWARD_API_KEY=KEY, TERM="xterm", NO_COLOR="1"
    )
