"""A daemon's log where nothing takes it: the daemon goes on."""

import os
import subprocess
import sys

import pytest

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
