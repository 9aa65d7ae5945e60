"""A container's log is copied once, over agents that come and go."""

from pathlib import Path

import pytest

from agent.containers.log_copy import LogCopy

FIRST = b"2026-11-22T21:39:59.575002001Z one\n"
SECOND = b"2026-11-22T21:39:59.5750021Z two "  # Docker leaves out trailing zeros
THIRD = b"2026-11-22T21:40:00Z three\n"


def test_a_later_agent_goes_on_after_the_last_piece(tmp_path: Path) -> None:
    log = tmp_path / "1-0.log"
    copy = LogCopy(log)
    assert copy.since == "0"
    copy.write([FIRST, SECOND])
    later = LogCopy(log)
    assert later.since == "1795383599"
    later.write([FIRST, SECOND, THIRD])
    assert log.read_bytes() == b"one\ntwo three\n"


def test_a_piece_without_a_time_is_kept(tmp_path: Path) -> None:
    copy = LogCopy(tmp_path / "1-0.log")
    copy.write([b"strange\n"])
    assert (tmp_path / "1-0.log").read_bytes() == b"strange\n"
    copy.append_line("it is the agent")
    assert (tmp_path / "1-0.log").read_bytes().endswith(b"gpuward: it is the agent\n")


def test_a_clock_that_is_set_back_loses_nothing(tmp_path: Path) -> None:
    copy = LogCopy(tmp_path / "1-0.log")
    copy.write([THIRD])
    copy.write([FIRST])
    assert (tmp_path / "1-0.log").read_bytes() == b"three\none\n"


def test_parts_of_one_line_share_a_time(tmp_path: Path) -> None:
    copy = LogCopy(tmp_path / "1-0.log")
    copy.write([SECOND, SECOND])
    copy.write([SECOND])
    later = LogCopy(tmp_path / "1-0.log")
    later.write([FIRST, SECOND, SECOND])
    later.write([SECOND, SECOND, THIRD])
    assert (tmp_path / "1-0.log").read_bytes() == b"two " * 4 + b"three\n"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    copy = LogCopy(tmp_path / "1-0.log")
    copy.write([FIRST])
    blocker = tmp_path / "1-0.since-part"
    blocker.mkdir()
    with pytest.raises(OSError, match="since-part"):
        copy.write([THIRD])
    blocker.rmdir()
    copy.begin()
    copy.write([FIRST, THIRD])
    assert (tmp_path / "1-0.log").read_bytes() == b"one\nthree\n"
