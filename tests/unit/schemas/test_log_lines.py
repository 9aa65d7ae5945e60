"""A daemon's log where nothing takes it: the daemon goes on."""

import contextlib
import os
import subprocess
import sys

import pytest
import structlog

from schemas.database_disk import DATABASE_FULL_TEXT
from schemas.log_lines import EVERY_S, MOST, RepeatedLines

DAEMON = """
import structlog
from schemas.log_lines import configure_logs
configure_logs(json={json}, process="x")
log = structlog.get_logger()
for number in range(10):
    log.info("ein Fehler → told", number=number)
print("went on")
"""


def run_daemon(stderr: int | None, *, json: bool = True, shell: str = "") -> subprocess.CompletedProcess[bytes]:
    line = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-c", DAEMON.format(json=json)]
    return subprocess.run(line, stdout=subprocess.PIPE, stderr=stderr, check=False, timeout=60)


@pytest.mark.parametrize("json", [True, False])
def test_it_goes_on_although_its_reader_has_ended(json):
    reader, unread = os.pipe()
    os.close(reader)
    try:
        done = run_daemon(unread, json=json)
    finally:
        os.close(unread)
    assert (done.returncode, done.stdout) == (0, b"went on\n")


@pytest.mark.parametrize("shell", ["2>/dev/full", "2>&-"])
def test_it_goes_on_although_its_lines_fit_nowhere(shell):
    done = run_daemon(None, shell=shell)
    assert (done.returncode, done.stdout) == (0, b"went on\n")


def test_every_line_comes():
    done = run_daemon(subprocess.PIPE)
    assert done.stderr is not None
    assert [f'"number": {n},' in line for n, line in enumerate(done.stderr.decode().splitlines())] == [True] * 10


class Log:
    """What comes through; `at_s` is the time."""

    def __init__(self) -> None:
        self.at_s = 1000.0
        self.lines = []
        self._repeated = RepeatedLines(lambda: self.at_s)

    def write(self, method="warning", **event):
        with contextlib.suppress(structlog.DropEvent):
            self.lines.append(dict(self._repeated(None, method, {"event": "not written", **event})))


def test_a_failure_each_second_is_a_line_each_minute():
    log = Log()
    for attempt in range(150):
        log.write(error="refused", attempt=attempt, retry_s=attempt / 7)
        log.at_s += 1.0
    assert [line.get("repeated", 0) for line in log.lines] == [0, EVERY_S - 1, EVERY_S - 1]


def test_other_lines_come_each_time():
    log = Log()
    others = [
        {"error": "refused", "worker": "a"},
        {"error": "refused", "worker": "b"},
        {"error": "another"},
        {"method": "error", "error": "lost"},
        {"method": "error", "error": "lost"},
        {"method": "info"},
        {"method": "info"},
        {"error": "a bug", "exc_info": True},
        {"error": "a bug", "exc_info": True},
    ]
    for other in others:
        log.write(**other)
    assert len(log.lines) == len(others)


def test_what_a_full_disk_refused_has_no_line_of_its_own():
    log = Log()
    for key in range(3):
        log.write(method="error", error=DATABASE_FULL_TEXT, key=key)
    assert log.lines == []


def test_few_lines_are_remembered():
    log = Log()
    for number in range(MOST + 1):
        log.write(error=f"{number}")
    log.write(error="0")  # forgotten
    log.write(error=f"{MOST}")
    assert len(log.lines) == MOST + 2
