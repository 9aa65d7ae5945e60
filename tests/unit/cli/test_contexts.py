"""Contexts: where they are kept, what a call takes of them, and that no key is printed."""

import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from cli.errors import CliError, NotFoundError
from cli.transport import contexts as module
from cli.transport.connection import Connection, find_connection
from cli.transport.contexts import Context, Contexts, changing, contexts_file, read_contexts
from support.builders.api_objects import deployment
from support.standins.api import KEY

SECRET = "gpw_secret"
URL = "http://10.0.0.7:8420"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".config" / "gpuward" / "contexts.json"


@pytest.fixture
def call(gpuward):
    """A call without an address and a key from the environment."""

    def called(*words: str, stdin: str | None = None):
        done = gpuward(*words, stdin=stdin, GPUWARD_URL=None, GPUWARD_API_KEY=None)
        assert SECRET not in done.output
        return done

    return called


def kept(file: Path, in_use: str | None = "a", url: str = URL, mode: int = 0o600) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"in_use": in_use, "contexts": {"a": {"url": url, "key": SECRET}}}))
    file.chmod(mode)
    return file


def test_a_context_is_added_used_listed_shown_and_deleted(call, file):
    done = call("context", "add", "prod", "--url", URL + "/", "--use", stdin=SECRET + "\n")
    assert (done.exit_code, done.stdout) == (0, "context/prod added and in use\n")
    assert call("context", "add", "test", "--url", "https://test", stdin=SECRET).stdout == "context/test added\n"
    assert call("context", "list").stdout.splitlines() == [
        "NAME  IN USE  URL",
        "prod  yes     http://10.0.0.7:8420",
        "test  no      https://test",
    ]
    assert call("context", "show").stdout == "Name:    prod\nURL:     http://10.0.0.7:8420\nIn use:  yes\n"
    assert call("context", "use", "test").stdout == "context/test in use\n"
    shown = json.loads(call("context", "show", "-o", "json").stdout)
    assert shown == {"name": "test", "url": "https://test", "in_use": True}
    assert [one["name"] for one in json.loads(call("context", "list", "-o", "json").stdout)["items"]] == [
        "prod",
        "test",
    ]
    assert call("context", "delete", "test").stdout == "context/test deleted\n"
    assert call("context", "show").exit_code == 3
    assert json.loads(file.read_text()) == {"in_use": None, "contexts": {"prod": {"url": URL, "key": SECRET}}}


def test_the_context_in_use_is_called(call, api):
    api.add(deployment("hello"))
    assert call("context", "add", "here", "--url", api.url, "--use", stdin=KEY).exit_code == 0
    assert call("get", "deployments", "-o", "name").stdout == "deployment/hello\n"
    assert call("context", "use", "--none").stdout == "no context is in use\n"
    assert call("get", "deployments", "-o", "name").exit_code == 1


def test_the_file_is_the_users_alone(call, file):
    old = os.umask(0)
    try:
        assert call("context", "add", "prod", "--url", URL, stdin=SECRET).exit_code == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [one.name for one in file.parent.iterdir()] == ["contexts.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_read_is_refused(call, file, mode):
    before = kept(file, mode=mode).read_bytes()
    for words in (("ps",), ("context", "list"), ("context", "use", "--none"), ("context", "delete", "a")):
        done = call(*words)
        assert done.exit_code == 1
        assert f"chmod 600 {file}" in done.stderr
    assert file.read_bytes() == before


def test_a_file_of_another_user_is_refused(file, monkeypatch):
    kept(file)
    real = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:10]))

    monkeypatch.setattr(module.os, "fstat", of_another)
    with pytest.raises(CliError, match="another user owns it"):
        read_contexts(file)


def test_flags_and_environment_win(tmp_path, file):
    kept(file)
    environ = {"HOME": str(tmp_path)}
    assert find_connection(None, None, environ=environ, data_dirs=[]) == Connection(URL, SECRET)
    assert find_connection(URL + "/", None, environ=environ, data_dirs=[]).key == SECRET
    assert find_connection("http://other", None, environ=environ, data_dirs=[]).key is None
    assert find_connection(None, "k", environ=environ, data_dirs=[]) == Connection(URL, "k")
    file.chmod(0o644)  # what is given whole needs nothing that is stored
    assert find_connection("http://other", "k", environ=environ, data_dirs=[]) == Connection("http://other", "k")


def test_it_comes_before_the_stored_key_of_a_controller(tmp_path, file):
    (tmp_path / "client.env").write_text("GPUWARD_URL=http://up:1\nGPUWARD_API_KEY=gpw_up\n")
    environ = {"HOME": str(tmp_path)}
    assert find_connection(None, None, environ=environ, data_dirs=[tmp_path]).url == "http://up:1"
    kept(file)
    assert find_connection(None, None, environ=environ, data_dirs=[tmp_path]) == Connection(URL, SECRET)
    assert find_connection("http://up:1", None, environ=environ, data_dirs=[tmp_path]).key == "gpw_up"
    kept(file, in_use=None)
    assert find_connection(None, None, environ=environ, data_dirs=[tmp_path]).url == "http://up:1"


def test_one_in_use_that_is_not_there_is_told(call, file):
    kept(file, in_use="gone")
    done = call("ps")
    assert (done.exit_code, done.stderr) == (
        3, "gpuward: context 'gone' does not exist; list them: gpuward context list\n"
    )  # fmt: skip


def test_what_does_not_exist_exits_with_3_and_what_exists_is_not_replaced(call, file):
    kept(file)
    for words in (("use", "b"), ("show", "b"), ("delete", "b")):
        assert call("context", *words).exit_code == 3
    assert "--replace" in call("context", "add", "a", "--url", "http://new", stdin="gpw_new").stderr
    assert read_contexts(file).get("a").key == SECRET
    assert call("context", "add", "a", "--url", "http://new", "--replace", stdin="gpw_new").exit_code == 0
    assert read_contexts(file) == Contexts({"a": Context("http://new", "gpw_new")}, "a")


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("add", "a b", "--url", URL), SECRET),
        (("add", "../a", "--url", URL), SECRET),
        (("add", "a", "--url", "10.0.0.7:8420"), SECRET),
        (("add", "a", "--url", URL), ""),
        (("add", "a", "--url", URL), f"{SECRET}\nX-Header: 1"),
        (("add", "a", "--url", URL), SECRET * 200),
        (("use",), None),
        (("use", "a", "--none"), None),
    ],
)
def test_usage_errors_write_nothing(call, file, words, stdin):
    assert call("context", *words, stdin=stdin).exit_code == 2
    assert not file.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", f'{{"contexts": {{"a": "{SECRET}"}}}}', f"{SECRET}", "\xff"])
def test_a_broken_file_is_told_without_its_text(call, file, text):
    kept(file).write_text(text, encoding="latin-1")
    done = call("ps")
    assert (done.exit_code, "is not valid" in done.stderr) == (1, True)


def test_a_failed_write_leaves_the_old_file(file, monkeypatch):
    before = kept(file).read_bytes()

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(CliError, match="cannot be written: No space"), changing(file) as held:
        held[0] = held[0].using(None)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_calls_at_once_lose_none(file):
    def add(number: int) -> None:
        with changing(file) as held:
            held[0] = held[0].having(f"c{number}", Context(URL, SECRET))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert sorted(read_contexts(file).by_name) == [f"c{number}" for number in range(8)]


def test_a_call_that_holds_the_file_for_long_is_told(file, monkeypatch):
    kept(file)
    monkeypatch.setattr(module, "_LOCK_S", 0.1)
    descriptor = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(CliError, match="try again"), changing(file):
            pass
    finally:
        os.close(descriptor)


def test_a_link_stays_one(file, tmp_path):
    there = kept(tmp_path / "mine.json")
    file.parent.mkdir(parents=True)
    file.symlink_to(there)
    with changing(file) as held:
        held[0] = held[0].using(None)
    assert file.is_symlink()
    assert read_contexts(there).in_use is None


def test_its_folder_follows_xdg():
    assert contexts_file({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/gpuward/contexts.json")
    assert contexts_file({"XDG_CONFIG_HOME": "x", "HOME": "/h"}) == Path("/h/.config/gpuward/contexts.json")


def test_a_key_is_in_no_text_of_a_context():
    found = Contexts({"a": Context(URL, SECRET)}, "a")
    assert SECRET not in repr(found)
    with pytest.raises(NotFoundError):
        found.get("b")


def two(file: Path) -> dict[str, str]:
    """The contexts `a`, which is in use, and `b`; returns the environment in which they are found."""
    kept(file)
    content = json.loads(file.read_text())
    content["contexts"]["b"] = {"url": "http://b", "key": "gpw_b"}
    file.write_text(json.dumps(content))
    return {"XDG_CONFIG_HOME": str(file.parent.parent)}


BOTH = {"GPUWARD_URL": "http://env", "GPUWARD_API_KEY": "gpw_env"}
OF_B = Connection("http://b", "gpw_b")


@pytest.mark.parametrize(
    ("flags", "variables", "found"),
    [
        ({}, {}, Connection(URL, SECRET)),
        ({"context": "b"}, {}, OF_B),
        ({}, {"GPUWARD_CONTEXT": "b"}, OF_B),
        ({}, {"GPUWARD_CONTEXT": ""}, Connection(URL, SECRET)),
        ({"context": "b"}, {"GPUWARD_CONTEXT": "a"}, OF_B),
        ({"context": "b"}, BOTH, OF_B),
        ({}, {**BOTH, "GPUWARD_CONTEXT": "b"}, OF_B),
        ({}, {"GPUWARD_API_KEY": "gpw_env", "GPUWARD_CONTEXT": "b"}, OF_B),
        ({"context": "b", "key": "k"}, BOTH, Connection("http://b", "k")),
        ({"key": "k"}, {**BOTH, "GPUWARD_CONTEXT": "b"}, Connection("http://b", "k")),
        ({"url": "http://flag"}, {"GPUWARD_CONTEXT": "b"}, Connection("http://flag", None)),
        ({"url": "http://flag", "key": "k"}, {**BOTH, "GPUWARD_CONTEXT": "b"}, Connection("http://flag", "k")),
        ({}, BOTH, Connection("http://env", "gpw_env")),
    ],
)
def test_flags_go_before_the_named_context_and_that_before_the_address(file, flags, variables, found):
    wanted = {"url": None, "key": None, **flags}
    assert find_connection(**wanted, environ={**two(file), **variables}, data_dirs=[]) == found


@pytest.mark.parametrize("name", ["missing", ""])
def test_an_unknown_context_ends_the_call_and_no_other_controller_is_asked(gpuward, api, file, name):
    two(file)
    done = gpuward("--context", name, "get", "deployments")
    assert done.exit_code == 3
    assert f"context {name!r} does not exist" in done.stderr
    assert api.asked == []


def test_a_context_and_an_address_exclude_each_other(gpuward, api):
    done = gpuward("--context", "a", "--url", "http://b", "get", "deployments")
    assert (done.exit_code, "exclude each other" in done.stderr) == (2, True)
    assert api.asked == []


def test_every_call_takes_the_context_of_the_flag_and_of_the_variable(gpuward, api, file):
    two(file)
    api.add(deployment("hello"))
    content = json.loads(file.read_text())
    content["contexts"]["b"] = {"url": api.url, "key": KEY}
    file.write_text(json.dumps(content))
    for verb in (["ps"], ["get", "deployments"], ["describe", "hello"], ["stop", "hello"], ["top", "--once"]):
        assert gpuward("--context", "b", *verb, GPUWARD_URL="http://127.0.0.1:1").exit_code == 0
        assert gpuward(*verb, GPUWARD_URL="http://127.0.0.1:1", GPUWARD_CONTEXT="b").exit_code == 0
    assert gpuward("--context", "b", "context", "show").stdout.splitlines()[0] == "Name:    b"


def test_the_list_says_what_goes_before_the_one_in_use(gpuward, file):
    kept(file)
    assert gpuward("context", "list", GPUWARD_CONTEXT="mine").stdout.splitlines()[-1] == (
        "GPUWARD_CONTEXT=mine goes before the one in use"
    )
    flagged = gpuward("--context", "other", "context", "list", GPUWARD_CONTEXT="mine").stdout
    assert flagged.splitlines()[-1] == "--context other goes before the one in use"
    assert "goes before" not in gpuward("context", "list").stdout
    assert json.loads(gpuward("context", "list", "-o", "json", GPUWARD_CONTEXT="mine").stdout)["items"]
