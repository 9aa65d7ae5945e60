"""The log file of `up` on a full disk, which RLIMIT_FSIZE makes: lines are lost, and nothing else happens."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    import logging, resource, signal, sys
    from pathlib import Path
    from cli.up.logs import log_to

    file, size = Path(sys.argv[1]), 4096
    log_to(file)
    log = logging.getLogger("x")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a full disk, the write fails
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    for number in range(2000):
        log.info("line %d %s", number, "x" * 100)
    assert file.stat().st_size == size, file.stat().st_size
    log.error("for the terminal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.info("there is space again")
    print("goes on")
"""


def logged(file: Path, **streams: object) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(file)]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(argv, text=True, timeout=60, check=False, **given)  # type: ignore[call-overload]


def test_a_full_disk_costs_lines_and_shows_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "gpuward.log"
    done = logged(file)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    assert done.stderr == "for the terminal\n"
    lines = file.read_text().splitlines()
    assert lines[0].startswith("line 0 ")
    assert lines[-1].endswith("there is space again")
    assert not [line for line in lines[2:-1] if line.startswith("line") and int(line.split()[1]) > 100]


def test_a_terminal_that_takes_nothing_costs_lines_too(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = logged(tmp_path / "gpuward.log", stderr=full)
    finally:
        os.close(full)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
