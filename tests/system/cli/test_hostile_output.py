"""What a real engine prints cannot control an operator's terminal: in `logs`, `ps`, `describe` and `events`."""

import os
import pty
import subprocess
import sys

import pytest

from support.processes.cluster import Cluster
from support.processes.up_process import clean_env

pytestmark = pytest.mark.cases
# Clears the screen, sets the title, asks the terminal to type, goes up, rings, in C0 and C1, and colours a word.
HOSTILE = r"\033[2J\033]0;owned\007\033[6n\033[1A\b\302\233\063J\000 \033[31mred\033[0m end\n"
CONTROLS = {*range(0x20), 0x7F, *range(0x80, 0xA0)} - {0x0A, 0x0D}  # a terminal's line ends with both


def gpuward(cluster: Cluster, *words: str, terminal: bool) -> str:
    """What a verb shows, in a pipe or on a terminal."""
    env = {**clean_env(), "GPUWARD_URL": cluster.url, "TERM": "xterm", "COLUMNS": "200"}
    env["GPUWARD_API_KEY"] = cluster.session.headers["Authorization"].partition(" ")[2]
    argv = [sys.executable, "-P", "-m", "cli", *words]
    if not terminal:
        return subprocess.run(argv, env=env, capture_output=True, timeout=60, check=True).stdout.decode()
    ours, theirs = pty.openpty()
    with subprocess.Popen(argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            pass  # the end of a terminal
        os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


async def test_it_is_shown_escaped(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    command = ["sh", "-c", f"printf '{HOSTILE}'; printf '{HOSTILE}' >&2; exit 3"]
    status, answer = await cluster.call("PUT", "/deployments/hostile", {
        "engine": "custom", "command": command, "restart": "never", "resources": {"gpus": 1, "gpu_memory": "1GiB"},
    })  # fmt: skip
    assert status == 201, answer
    await cluster.until(lambda: cluster.phase_is("hostile", "failed"), "it failed", 60)
    (instance,) = await cluster.instances("hostile")
    for words in (
        ("logs", "hostile"),
        ("ps",),
        ("describe", "deployment", "hostile"),
        ("describe", "instance", instance["name"]),
        ("events",),
        ("get", "instances", "-o", "wide"),
    ):
        piped = gpuward(cluster, *words, terminal=False)
        assert not CONTROLS & set(map(ord, piped)), (words, piped)
        shown = gpuward(cluster, *words, terminal=True)
        for colour in ("\x1b[31m", "\x1b[0m"):  # an engine's colours pass on a terminal
            shown = shown.replace(colour, "") if words[0] == "logs" else shown
        if words[0] == "logs":
            assert not CONTROLS & set(map(ord, shown)), shown
            assert piped.count("\\x1b[2J") == shown.count("\\x1b[2J") == 2, piped
        for bad in ("\x1b[2J", "\x1b]0", "\x1b[6n", "\x1b[1A", "\x9b", "\x07", "\x08"):
            assert bad not in shown, (words, shown)
