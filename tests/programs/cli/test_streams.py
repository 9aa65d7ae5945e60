"""Calls whose standard streams are closed, full or read by a program that has ended."""

import os
import subprocess
import sys

import pytest

from support.builders.api_objects import deployment, instance
from support.standins.api import KEY, ApiDouble

PS, GET, WATCH = "ps", "get deployments -o json", "events -w"
LOGS, MANY_LOGS = "logs -f chat-1", "logs -f chat"
REFUSED = "get deployment none"
APPLY, DELETE, SECRET, RUN = "apply -f -", "delete -l app=x", "secret set s", "run hf:a/b --name chat"
HELP = "--help"
FULL = "gpuward: stdout: No space left on device\n"


@pytest.fixture
def full(api: ApiDouble) -> ApiDouble:
    """The API of a controller with a deployment of two instances and their logs."""
    chat = deployment("chat", "running", spec={"model": "hf:a/b", "labels": {"app": "x"}})
    api.add(chat, instance(chat, 1), instance(chat, 2))
    event = {"id": 1, "at": chat["created_at"], "reason": "r", "message": "m", "objects": ["deployment:x"]}
    api.objects["events"] = {"1": event}
    for name in api.objects["instances"]:
        api.logs[name] = b"a line\n" * 3
    return api


def called(
    api: ApiDouble, words: str, streams: str = "", stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Runs a call in a shell with these redirections; its stderr is read unless they say otherwise."""
    env = {"GPUWARD_URL": api.url, "GPUWARD_API_KEY": KEY, "HOME": "/nowhere", "PATH": os.environ["PATH"]}
    names = sorted(api.objects["instances"])
    words = words.replace("chat-1", names[0]) if names else words
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m cli {words} {streams}"],
        env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    for sign in ("Traceback", "Exception ignored", "ExceptionGroup"):
        assert sign not in (done.stdout or "") + done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        (PS, ">&-", 0),
        (GET, ">&-", 0),
        (LOGS, ">&-", 0),
        (HELP, ">&-", 0),
        (PS, "2>&-", 0),
        (PS, "2>/dev/full", 0),
        (PS, "<&-", 0),
        (REFUSED, "2>&-", 3),
        (REFUSED, "2>/dev/full", 3),
        (APPLY, "<&-", 1),
        (APPLY, "<&- 2>&-", 1),
        (DELETE, "<&-", 2),
        (SECRET, "<&-", 2),
        (RUN, "<&-", 0),
        (RUN, "<&- >&- 2>&-", 0),
    ],
)
def test_a_stream_that_is_closed_or_full_of_messages_changes_nothing(full, words, streams, code):
    done = called(full, words, streams)
    assert done.returncode == code, done.stderr
    if "2>" in streams:
        assert "gpuward:" not in done.stdout
    if code:
        assert done.stdout == ""


@pytest.mark.parametrize("words", [PS, GET, WATCH, LOGS, MANY_LOGS, HELP, "describe deployment chat", "top -n"])
def test_results_that_fit_nowhere_are_told_in_a_line(full, words):
    done = called(full, words, ">/dev/full")
    assert (done.returncode, done.stderr) == (1, FULL)
    assert called(full, words, ">/dev/full 2>/dev/full").returncode == 1


@pytest.mark.parametrize("words", [PS, GET, LOGS, MANY_LOGS, HELP])
def test_a_reader_that_has_gone_ends_the_call_in_silence(full, words):
    reader, unread = os.pipe()
    os.close(reader)
    try:
        done = called(full, words, stdout=unread)
    finally:
        os.close(unread)
    assert (done.returncode, done.stderr) == (1, "")


def test_both_streams_in_one_file_are_in_order(full):
    done = called(full, "stop chat none", "2>&1")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["deployment/chat", "gpuward:"]


def test_an_interrupt_at_once_ends_the_call_in_silence():
    code = "import cli.terminal.streams as s\ndef end(): raise KeyboardInterrupt\ns.open_streams = end\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}from cli.main import main; main()"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
