"""A log's lines get the times at which the log was seen to grow: over agents, rotations and full disks, bounded."""

import os
import re
from pathlib import Path

import pytest

from agent.containers.log_copy import LogCopy
from agent.logs import log_index
from agent.logs.log_index import MOST_ENTRIES, LogIndex
from agent.logs.redaction import Redactor
from agent.logs.timed_log import TimedLog
from agent.processes.folders import InstanceFolders
from agent.state.process_records import ProcessKey

START_S = 1_800_000_000
FRAME = re.compile(rb"L(\d+) ([01]) (\d+) (.*)\n")


class Written:
    """A log that an engine writes, with the clock of the file system and of the agent set by hand."""

    def __init__(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.now_s = float(START_S)
        monkeypatch.setattr(log_index, "_now_ms", lambda: int(self.now_s * 1000))

    def say(self, text: str, after_s: float = 1.0) -> None:
        self.now_s += after_s
        with self.log.open("a") as file:
            file.write(text)
        os.utime(self.log, ns=(0, int(self.now_s * 1e9)))


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(tmp_path / "1-0.log", monkeypatch)


def lines(
    log: Path, index: LogIndex, *, since_s: float | None = None, tail: int | None = None
) -> list[tuple[float, bool, int, str]]:
    """Of each line: seconds since the start, whether they are exact, its position, and the text."""
    reader = TimedLog(log, index, Redactor())
    reader.begin(since_ms=None if since_s is None else int((START_S + since_s) * 1000), tail=tail)
    frames: list[bytes] = []
    while (some := reader.read(last=True)) is not None:
        frames += some
    found = [FRAME.fullmatch(frame) for frame in frames]
    assert all(found), frames
    return [(int(m[1]) / 1000 - START_S, m[2] == b"1", int(m[3]), m[4].decode()) for m in found if m]


def test_lines_have_the_second_in_which_they_were_written(written: Written) -> None:
    index = LogIndex(written.log)
    index.begin()
    for n in range(5):
        written.say(f"line {n}\n")
        index.poll()
    assert lines(written.log, index) == [(n + 1.0, True, 7 * n, f"line {n}") for n in range(5)]
    assert [text for *_, text in lines(written.log, index, since_s=3.0)] == ["line 2", "line 3", "line 4"]
    assert [text for *_, text in lines(written.log, index, since_s=9.0)] == []
    assert [text for *_, text in lines(written.log, index, tail=2)] == ["line 3", "line 4"]
    assert [text for *_, text in lines(written.log, index, since_s=3.0, tail=2)] == ["line 3", "line 4"]
    written.say("not looked at yet\n")
    assert lines(written.log, index)[-1] == (6.0, True, 35, "not looked at yet")


def test_a_later_agent_knows_the_times_and_what_it_did_not_see(written: Written) -> None:
    first = LogIndex(written.log)
    first.begin()
    written.say("seen\n")
    first.poll()
    for n in range(3):
        written.say(f"unseen {n}\n", after_s=60.0)
    later = LogIndex(written.log)
    later.poll()
    written.say("seen again\n")
    later.poll()
    assert [(at, exact) for at, exact, *_ in lines(written.log, later)] == [
        (1.0, True), (181.0, False), (181.0, False), (181.0, False), (182.0, True),
    ]  # fmt: skip
    assert next(text for *_, text in lines(written.log, LogIndex(written.log), since_s=100.0)) == "unseen 0"


def test_a_line_in_several_pieces_has_the_time_of_its_end_and_is_found_whole(written: Written) -> None:
    index = LogIndex(written.log)
    index.begin()
    for text in ("one\nbegin ", "middle ", "end\nnext\n"):
        written.say(text)
        index.poll()
    assert lines(written.log, index, since_s=3.0) == [(3.0, True, 4, "begin middle end"), (3.0, True, 21, "next")]


def test_progress_bars_are_lines_of_their_own(written: Written) -> None:
    index = LogIndex(written.log)
    index.begin()
    written.say("10%\r50%\r\n100%\rno end")
    assert [text for *_, text in lines(written.log, index)] == ["10%", "50%", "100%", "no end"]


def test_positions_and_times_survive_rotations(written: Written, tmp_path: Path) -> None:
    folders = InstanceFolders(tmp_path, log_bytes=100)
    key = ProcessKey("i-1", 1, 0)
    written.log = folders.log(key)
    index = folders.index(key)
    index.begin()
    assert folders.index(key) is index
    for n in range(60):
        written.say(f"line {n:04d}\n")
        index.poll()
        folders.rotate_log(key)
    del index
    found = lines(written.log, folders.index(key))
    texts = [text for *_, text in found]
    assert texts == [f"line {n:04d}" for n in range(60 - len(texts), 60)]
    assert len(texts) >= 10
    assert [(at, position) for at, _, position, _ in found] == [
        (n + 1.0, 10 * n) for n in (int(text[5:]) for text in texts)
    ]


def test_an_agent_that_died_within_a_rotation_goes_on(written: Written) -> None:
    index = LogIndex(written.log)
    index.begin()
    written.say("0123456789\n" * 10)
    index.poll()
    written.log.with_suffix(".log.1").write_bytes(written.log.read_bytes()[-55:])
    written.log.write_bytes(b"")
    written.say("after\n")
    later = LogIndex(written.log)
    later.poll()
    found = lines(written.log, later)
    assert [text for *_, text in found] == ["0123456789"] * 5 + ["after"]
    assert [position for _, _, position, _ in found] == [55, 66, 77, 88, 99, 110]


def test_a_log_of_an_earlier_version_has_its_latest_time(written: Written) -> None:
    written.say("old\nolder\n", after_s=50.0)
    index = LogIndex(written.log)
    index.begin()
    index.poll()
    assert [(at, exact) for at, exact, *_ in lines(written.log, index)] == [(50.0, False)] * 2


def test_the_index_is_bounded(written: Written) -> None:
    index = LogIndex(written.log)
    index.begin()
    number = MOST_ENTRIES + 1000
    written.log.write_bytes(b"x\n" * number)
    index.note((2 * (n + 1), (START_S + n) * 1000) for n in range(number))
    assert written.log.with_suffix(".index").stat().st_size <= 24 + 16 * MOST_ENTRIES
    found = lines(written.log, LogIndex(written.log))
    assert len(found) == number
    assert all(at - n in (0, 1) for n, (at, *_) in enumerate(found)), "as late or later, never earlier"
    assert [text for *_, text in lines(written.log, index, since_s=number - 3)] == ["x"] * 3


@pytest.mark.parametrize("spoil", [b"", b"gpwlog 1", b"nonsense, and a lot of it", None])
def test_a_spoilt_index_is_written_anew(written: Written, spoil: bytes | None) -> None:
    index = LogIndex(written.log)
    index.begin()
    written.say("one\n")
    index.poll()
    path = written.log.with_suffix(".index")
    path.write_bytes(path.read_bytes()[:-3] if spoil is None else spoil)
    later = LogIndex(written.log)
    written.say("two\n")
    later.poll()
    assert [text for *_, text in lines(written.log, later)] == ["one", "two"]
    assert [at for at, *_ in lines(written.log, LogIndex(written.log))] == [at for at, *_ in lines(written.log, later)]


def test_a_full_disk_costs_nothing_but_the_file(written: Written) -> None:
    index = LogIndex(written.log)
    index.begin()
    written.log.with_suffix(".index").unlink()
    written.log.with_suffix(".index").mkdir()  # nothing can be written there
    written.say("one\n")
    index.poll()
    assert lines(written.log, index) == [(1.0, True, 0, "one")]
    written.log.with_suffix(".index").rmdir()
    written.say("two\n")
    index.poll()
    assert [at for at, *_ in lines(written.log, LogIndex(written.log))] == [1.0, 2.0]


def test_a_container_has_the_times_that_docker_kept(tmp_path: Path) -> None:
    log = tmp_path / "1-0.log"
    index = LogIndex(log)
    copy = LogCopy(log, index)
    copy.write([b"2027-01-15T08:00:01.5Z one\n", b"2027-01-15T08:00:01.75Z two\n", b"2027-01-15T08:00:09Z three\n"])
    index.poll()
    assert [(at, exact, text) for at, exact, _, text in lines(log, index)] == [
        (1.75, True, "one"), (1.75, True, "two"), (9.0, True, "three"),
    ]  # fmt: skip
