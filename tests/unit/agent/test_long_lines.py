"""The end of a log whose lines are long: what is read and held of it is bounded, and a line that is cut says so."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.logs.log_index import LogIndex
from agent.logs.plain_log import CUT, LINE_BYTES, PlainLog
from agent.logs.redaction import LEAST, Redactor
from agent.logs.timed_log import TimedLog

LONG = 5_000_000
TOKEN = "hf_0123456789abcdefghijklmnop"
MOST_SHOWN = LINE_BYTES + 200


def written(folder: Path, rotated: bytes, log: bytes) -> Path:
    path = folder / "1-0.log"
    path.with_suffix(".log.1").write_bytes(rotated)
    path.write_bytes(log)
    return path


def tail_of(path: Path, lines: int, *secrets: str) -> bytes:
    reader = PlainLog(path, LogIndex(path), Redactor(secrets))
    return reader.tail(lines) + reader.rest()


def frames_of(path: Path, lines: int, *secrets: str) -> tuple[list[bytes], int]:
    """Frames of the last lines, and the most that one read has brought."""
    reader = TimedLog(path, LogIndex(path), Redactor(secrets))
    reader.begin(since_ms=None, tail=lines)
    frames, most = list[bytes](), 0
    while (read := reader.read(last=True)) is not None:
        frames += read
        most = max(most, sum(map(len, read)))
    return frames, most


def long_line(number: int) -> bytes:
    return b"line %d " % number + b"x" * LONG + b"\n"


@pytest.mark.parametrize("ended", [True, False])
def test_a_tail_of_huge_lines_shows_the_begin_of_each(tmp_path: Path, ended: bool) -> None:
    last = long_line(5) if ended else long_line(5)[:-1]
    path = written(tmp_path, b"".join(map(long_line, (1, 2, 3))), long_line(4) + last)
    tracemalloc.start()
    shown = tail_of(path, 5).splitlines()
    frames, most = frames_of(path, 5)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    texts = [frame.split(b" ", 3)[3].rstrip(b"\n") for frame in frames]
    for lines in (shown, texts):
        assert [line[:7] for line in lines] == [b"line %d " % number for number in (1, 2, 3, 4, 5)]
        assert all(line.endswith(CUT) and len(line) <= MOST_SHOWN for line in lines)
    assert most <= MOST_SHOWN
    assert held < 4 * 2**20


def test_all_lines_of_a_tail_together_are_bounded(tmp_path: Path) -> None:
    lines = [b"%d " % number + b"y" * 60_000 + b"\n" for number in range(250)]
    path = written(tmp_path, b"".join(lines[:125]), b"".join(lines[125:]))
    shown = tail_of(path, 10_000)
    assert 3 * 2**20 < len(shown) <= 4 * 2**20
    assert b"".join(lines).endswith(shown)
    assert shown.startswith(tuple(b"%d yyy" % number for number in range(250))), "whole lines"


def test_what_follows_on_a_line_that_is_cut_is_shown(tmp_path: Path) -> None:
    path = written(tmp_path, b"", b"a" * 400_000 + b"\r\nnext\n" + b"b" * 400_000)
    reader = TimedLog(path, LogIndex(path), Redactor())
    reader.begin(since_ms=None, tail=None)
    frames = list[bytes]()
    while (read := reader.read()) is not None:
        frames += read
    with path.open("ab") as file:
        file.write(b"b" * 400_000 + b"\rdone\n")
    while (read := reader.read(last=True)) is not None:
        frames += read
    texts = [frame.split(b" ", 3)[3] for frame in frames]
    assert [text[:4] for text in texts] == [b"aaaa", b"next", b"bbbb", b"done"]
    assert [CUT in text for text in texts] == [True, False, True, False]


def test_a_line_after_one_that_is_cut_is_shown_where_a_read_ends_between_both(tmp_path: Path) -> None:
    for length in (4 * LINE_BYTES - 1, 8 * LINE_BYTES - 1):
        path = written(tmp_path, b"", b"a" * length + b"\rnext\n")
        texts = [frame.split(b" ", 3)[3] for frame in frames_of(path, 2)[0]]
        assert [text[:4] for text in texts] == [b"aaaa", b"next"], length


@pytest.mark.parametrize("shift", range(0, len(TOKEN) + 2, 3))
def test_no_part_of_a_secret_is_shown_where_a_line_is_cut(tmp_path: Path, shift: int) -> None:
    line = b"z" * (LINE_BYTES - shift) + TOKEN.encode() + b"z" * 300_000 + b"\n"
    path = written(tmp_path, b"", line * 2)
    for text in (tail_of(path, 2, TOKEN), b"".join(frames_of(path, 2, TOKEN)[0])):
        assert not any(TOKEN[at : at + LEAST].encode() in text for at in range(len(TOKEN) - LEAST + 1))


PIECES = {"a": b"a", "n": b"\n", "r": b"\r", "rn": b"\r\n", "chunk": b"x" * 65_533, "half": b"y" * 32_767}


@example(["a", "rn", "a", "a", "chunk", "chunk"], 2)  # a chunk begins within \r\n
@given(st.lists(st.sampled_from(sorted(PIECES)), max_size=12), st.integers(0, 9))
def test_a_tail_is_the_last_lines_whatever_ends_them(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], lines: int
) -> None:
    text = b"".join(PIECES[piece] for piece in pieces)
    path = written(tmp_path_factory.mktemp("log"), b"first\n", text)
    expected = (b"first\n" + text).splitlines(keepends=True)[-lines:] if lines else []
    shown = [line if len(line) <= LINE_BYTES else line[:LINE_BYTES] + CUT + b"\n" for line in expected]
    assert tail_of(path, lines) == b"".join(shown)


def test_an_end_of_two_bytes_is_one_end_wherever_it_is_read_apart(tmp_path: Path) -> None:
    for length in range(LINE_BYTES - 6, LINE_BYTES + 4):
        path = written(tmp_path, b"", b"before\r\nfirst\r\n" + b"z" * length)
        shown = tail_of(path, 2)
        assert shown.startswith(b"first\r\nzzz"), length
