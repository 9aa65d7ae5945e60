"""`get -w` and `ps -w`: what changes is told once, through a pipe and on a terminal, over a restart, until Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cli.errors import CliError
from cli.follow.board import Board
from cli.follow.watch import EventReader
from cli.objects.kinds import DEPLOYMENTS, INSTANCES
from cli.objects.selectors import parse_selector
from support.builders.api_objects import deployment, instance, worker
from support.standins.api import KEY, ApiDouble, refusal
from support.standins.terminal import Terminal, until


def changed(*raws):
    return [("changed", raw) for raw in raws]


def test_events_come_whole_however_they_are_cut():
    text = b': hello\n\nevent: changed\ndata: {"type":"changed","object":{"name":"\xc3\xa9"}}\n\n: still here\n\n'
    for size in (1, 2, 7, 1000):
        reader = EventReader()
        found = [event for at in range(0, len(text), size) for event in reader.feed(text[at : at + size])]
        assert found == [("changed", {"name": "\u00e9"})]
    with pytest.raises(CliError, match="cannot be read"):
        EventReader().feed(b"data: nonsense\n\n")


def test_a_board_tells_of_what_is_asked_for_and_once():
    chat, code = deployment("chat", spec={"labels": {"app": "x"}}), deployment("code")
    one, other = instance(chat), instance(code)
    board = Board(INSTANCES, selector=parse_selector("app=x"))
    snapshot = [("snapshot", {"deployments": [chat, code], "instances": [other, one]})]
    assert [change.raw["name"] for change in board.take(snapshot)] == ["chat-1"]
    assert board.take(snapshot) == []
    assert board.take(changed(other, worker("w1"))) == []
    (lost,) = board.take(changed({**chat, "spec": {**chat["spec"], "labels": {}}}))
    assert (lost.raw["name"], lost.gone) == ("chat-1", True)  # its labels left the selection
    assert board.shown() == []


def test_what_has_gone_in_a_gap_is_told_after_it():
    chat, code = deployment("chat"), deployment("code")
    board = Board(DEPLOYMENTS)
    board.take([("snapshot", {"deployments": [chat, code]})])
    again = {**chat, "generation": 2}
    gone, new = board.take([("snapshot", {"deployments": [again]})])
    assert (gone.raw["name"], gone.gone) == ("code", True)
    assert (new.raw, new.before, new.gone) == (again, chat, False)


@contextmanager
def following(api: ApiDouble, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A call that follows, in a pipe."""
    env = {"GPUWARD_URL": api.url, "GPUWARD_API_KEY": KEY, "HOME": "/nowhere", "PATH": os.environ["PATH"]}
    called = subprocess.Popen(
        [sys.executable, "-m", "cli", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield called
    finally:
        called.kill()
        called.communicate()


def line(called: subprocess.Popen[str]) -> list[str]:
    assert called.stdout is not None
    return called.stdout.readline().split()


def test_a_pipe_gets_a_line_for_each_change_until_ctrl_c(api):
    chat = deployment("chat", "progressing")
    api.add(chat, deployment("code"))
    with following(api, "get", "deployments", "-w") as called:
        assert line(called) == ["NAME", "PHASE", "READY", "SCALE", "ENGINE", "AGE", "WHY"]
        assert line(called)[:2] == ["chat", "progressing"]
        assert line(called)[:2] == ["code", "running"]
        api.tell("changed", {**chat, "generation": 2})  # nothing that the table shows
        api.tell("changed", {**chat, "status": {**chat["status"], "phase": "failed"}})
        assert line(called)[:2] == ["chat", "failed"]
        api.tell("gone", chat)
        assert line(called)[:2] == ["chat", "gone"]
        called.send_signal(signal.SIGINT)
        assert called.wait(20) == 0
        assert called.communicate()[1] == ""


def test_it_goes_on_after_a_restart_and_says_so(api):
    chat = deployment("chat", "progressing")
    api.add(chat)
    with following(api, "get", "deployment", "chat", "-w", "-o", "json") as called:
        first = json.loads(called.stdout.readline())
        assert (first["type"], first["object"]) == ("changed", chat)
        chat["status"]["phase"] = "running"
        api.refuse = lambda _: refusal_later(api)
        api.tell("", None)
        second = json.loads(called.stdout.readline())
        assert second["object"]["status"]["phase"] == "running"
        api.refuse = None
        called.send_signal(signal.SIGINT)
        assert called.wait(20) == 0
        told = called.communicate()[1]
    assert told.count("trying again") == 2
    assert "the controller has ended the watch; trying again" in told
    assert "the database is unavailable" in told


def test_it_ends_where_its_key_is_revoked(api):
    api.add(deployment("chat"))
    with following(api, "get", "deployments", "-w", "-o", "name") as called:
        assert line(called) == ["deployment/chat"]
        api.key = "another"
        api.tell("", None)
        assert called.wait(20) == 1
        assert "valid key" in called.communicate()[1]


async def refusal_later(api):
    """A refusal of one request."""
    api.refuse = None
    return refusal(503, "database_unavailable", "the database is unavailable; try again in a moment")


def test_labels_names_and_a_deployment_narrow_it(api):
    chat, code = deployment("chat", spec={"labels": {"app": "x"}}), deployment("code")
    api.add(chat, code, instance(chat), instance(code))
    for words in (("ps", "chat", "-w"), ("ps", "-w", "-l", "app=x"), ("get", "instance", "chat-1", "-w")):
        with following(api, *words, "-o", "name") as called:
            assert line(called) == ["instance/chat-1"]
            api.tell("changed", {**instance(code), "generation": 2})
            api.tell("changed", {**instance(chat), "generation": 3})
            assert line(called) == ["instance/chat-1"]


@pytest.mark.parametrize("words", [("ps", "ch"), ("ps", "ch", "-w")])
def test_the_beginning_of_a_name_is_followed_by_the_whole_name(api, words):
    chat, code = deployment("chat"), deployment("code")
    api.add(chat, code, instance(chat), instance(code))
    with following(api, *words, "-o", "name") as called:
        assert line(called) == ["instance/chat-1"]


def test_columns_grow_with_longer_values(api):
    api.add(deployment("a"))
    with following(api, "get", "deployments", "-w") as called:
        called.stdout.readline()
        called.stdout.readline()
        api.tell("changed", deployment("a-much-longer-name-than-before"))
        wide = called.stdout.readline()
        api.tell("changed", deployment("b"))
        narrow = called.stdout.readline()
    assert wide.index("running") == narrow.index("running")


def test_a_connection_that_breaks_is_said_to_have_ended(api):
    api.add(deployment("chat"))
    with following(api, "get", "deployments", "-w", "-o", "name") as called:
        assert line(called) == ["deployment/chat"]
        api.cut()
        assert called.stderr.readline() == f"gpuward: the connection to {api.url} has ended; trying again\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("get", "gpus"), 2, "gpus cannot be followed so; use gpuward top"),
        (("get", "events"), 2, "use gpuward events -w"),
        (("get", "keys"), 2, "use one of deployments, instances, workers, policies"),
        (("get", "policies", "-l", "a"), 2, "policies have no labels"),
        (("get", "deployments", "missing"), 3, "does not exist"),
        (("ps", "missing"), 3, "does not exist"),
    ],
)
def test_what_cannot_be_followed_is_refused(gpuward, words, code, message):
    done = gpuward(*words, "-w")
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr


def test_without_a_controller_it_ends(gpuward):
    assert gpuward("ps", "-w", GPUWARD_URL="http://127.0.0.1:1").exit_code == 1


def test_a_terminal_gets_the_table_in_its_place(api):
    chat = deployment("chat", "progressing")
    one = instance(chat, 1, "pending", message="no GPU is free")
    api.add(chat, deployment("nap", "asleep"), one)
    with Terminal(api, "ps", "-w", columns=80, lines=10) as terminal:
        until(lambda: "pending" in terminal.text())
        assert "nap: asleep; a request wakes it" in terminal.text()
        api.tell("changed", {**one, "status": {**one["status"], "phase": "running", "message": ""}})
        until(lambda: "running" in terminal.text())
        assert "pending" not in terminal.text()
        assert terminal.text().count("chat-1") == 1
        api.tell("", None)
        until(lambda: "trying again" in terminal.text())
        until(lambda: "trying again" not in terminal.text())
        terminal.resize(60, 4)
        until(lambda: len(terminal.text().splitlines()) <= 4)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    assert terminal.restored()
    assert "chat-1" in terminal.text()  # the last table stays


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_puts_the_terminal_back(api, number):
    api.add(deployment("chat"))
    with Terminal(api, "get", "deployments", "-w", columns=80, lines=10) as terminal:
        until(lambda: "chat" in terminal.text())
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
    assert terminal.restored()
