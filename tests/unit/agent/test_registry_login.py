"""Logins as `docker login` keeps them: in its file, or with a helper, whose trouble is named and holds no secret."""

import asyncio
import base64
import os
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from agent.containers import registry_login
from agent.containers.registry_login import Login, stored_login
from agent.decide.registry_logins import helper_for

HUB = "https://index.docker.io/v1/"
KEPT = {"auth": base64.b64encode(b"me:secret").decode()}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def configure(folder: Path, config: Any) -> None:
    (folder / "config.json").write_bytes(config if isinstance(config, bytes) else orjson.dumps(config))


def write_helper(folder: Path, script: str) -> None:
    helper = folder / "docker-credential-kept"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    configure(folder, {"credsStore": "kept", "auths": {"r": KEPT}})


@pytest.mark.parametrize(
    "config",
    [{"auths": {"r": {"auth": None}}}, {"auths": {"r": None}}, {}, {"auths": {"other": KEPT}}],
)
async def test_a_file_without_the_registry_holds_no_login(tmp_path: Path, config: Any) -> None:
    configure(tmp_path, config)
    assert await stored_login("r") == Login(None)


@pytest.mark.parametrize(
    ("registry", "config", "expected"),
    [
        ("r", {"auths": {"r": KEPT}}, {"username": "me", "password": "secret"}),
        ("r", {"auths": {"https://r": KEPT}}, {"username": "me", "password": "secret"}),
        ("docker.io", {"auths": {HUB: KEPT}}, {"username": "me", "password": "secret"}),
        ("docker.io", {"auths": {"index.docker.io": KEPT}}, {"username": "me", "password": "secret"}),
        ("docker.io", {"auths": {"docker.io": KEPT}}, {"username": "me", "password": "secret"}),
        ("index.docker.io", {"auths": {HUB: KEPT}}, {"username": "me", "password": "secret"}),
        ("r", {"auths": {"r": {"identitytoken": "t"}}}, {"identitytoken": "t"}),
        ("r", {"auths": {"r": KEPT}, "credHelpers": {"other": "x"}}, {"username": "me", "password": "secret"}),
    ],
)
async def test_a_login_in_the_file(
    tmp_path: Path, registry: str, config: dict[str, Any], expected: dict[str, str]
) -> None:
    configure(tmp_path, config)
    assert await stored_login(registry) == Login(expected)


@pytest.mark.parametrize(
    ("config", "registry", "helper"),
    [
        ({}, "r", None),
        ({"credsStore": "all"}, "r", "all"),
        ({"credsStore": "all", "credHelpers": {"r": "own"}}, "r", "own"),
        ({"credsStore": "all", "credHelpers": {"r": "own"}}, "s", "all"),
        ({"credHelpers": {HUB: "own"}}, "docker.io", "own"),
        ({"credHelpers": {"docker.io": "own"}}, "docker.io", "own"),
        ({"credHelpers": {"index.docker.io": "own"}}, "docker.io", "own"),
        ({"credHelpers": {"docker.io": "own"}}, "index.docker.io", "own"),
        ({"credHelpers": 5, "credsStore": ""}, "r", None),
    ],
)
def test_the_helper_of_the_registry_comes_first(config: dict[str, Any], registry: str, helper: str | None) -> None:
    assert helper_for(config, registry) == helper


async def test_a_helper_gets_the_registry_and_answers(tmp_path: Path) -> None:
    write_helper(tmp_path, """read server; echo warning >&2; echo '{"Username": "'"$1 $server"'", "Secret": "s"}'""")
    assert await stored_login("r:5000") == Login({"username": "get r:5000", "password": "s"})
    assert await stored_login("docker.io") == Login({"username": f"get {HUB}", "password": "s"})


async def test_a_helper_may_give_a_token(tmp_path: Path) -> None:
    write_helper(tmp_path, """echo '{"Username": "<token>", "Secret": "t"}'""")
    assert await stored_login("r") == Login({"identitytoken": "t"})


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("echo credentials not found in native keychain; exit 1", ""),
        ("echo hunter2; echo hunter2 >&2; exit 1", "docker-credential-kept: it exits with code 1"),
        (
            "echo hunter2",
            "docker-credential-kept: its answer is not valid JSON",
        ),
        ("echo '[\"hunter2\"]'", "docker-credential-kept: it answers without Username and Secret"),
        ("sleep 60", "docker-credential-kept: it does not answer within 0.5 s"),
        ("yes hunter2", "docker-credential-kept: it does not answer within 0.5 s"),
    ],
)
async def test_the_trouble_of_a_helper_is_named_in_time_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, trouble: str
) -> None:
    monkeypatch.setattr(registry_login, "_HELPER_LIMIT_S", 0.5 if "60" in script or "yes" in script else 20.0)
    write_helper(tmp_path, script)
    began = time.monotonic()
    assert await stored_login("r") == Login(None, trouble)
    assert time.monotonic() - began < 20


async def test_a_helper_that_is_missing_or_not_one_is_named(tmp_path: Path) -> None:
    configure(tmp_path, {"credsStore": "nowhere"})
    assert (await stored_login("r")).trouble.startswith("docker-credential-nowhere: it cannot be started")
    configure(tmp_path, {"credsStore": "../x"})
    assert "not a valid name" in (await stored_login("r")).trouble


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b'{"auths": {"r": hunter2', "it is not valid JSON"),
        ([], "it is not a JSON object"),
        ({"auths": 5}, "its `auths` is not a JSON object"),
        (b" " * (2**20 + 1), "it is longer than 1 MiB"),
    ],
)
async def test_a_broken_file_is_named_with_the_fix_and_without_a_secret(
    tmp_path: Path, config: Any, words: str
) -> None:
    configure(tmp_path, config)
    with capture_logs() as lines:
        login = await stored_login("r")
    fix = "correct it, or remove it and run `docker login` again as the agent's user"
    assert login == Login(None, f"{tmp_path / 'config.json'}: {words}; {fix}")
    assert [(one["event"], one["error"]) for one in lines] == [("Docker login unknown", login.trouble)]


@pytest.mark.parametrize("config", [b"", b"\n"])
async def test_an_empty_file_holds_no_login(tmp_path: Path, config: bytes) -> None:
    configure(tmp_path, config)
    assert await stored_login("r") == Login(None)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
async def test_what_is_not_a_regular_file_is_refused_without_waiting_for_it(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "config.json")
    async with asyncio.timeout(5):
        assert "it is not a regular file" in (await stored_login("r")).trouble


async def test_a_disk_that_hangs_is_left_behind_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, began = threading.Event(), []

    def hang(*_: Any) -> None:
        began.append(1)
        hanging.wait()

    configure(tmp_path, {})
    monkeypatch.setattr(registry_login, "_read_config", hang)
    monkeypatch.setattr(registry_login, "_CONFIG_LIMIT_S", 0.1)
    monkeypatch.setattr(registry_login, "_readers", threading.Semaphore(2))
    try:
        async with asyncio.timeout(10):
            found = [(await stored_login("r")).trouble for _ in range(3)]
    finally:
        hanging.set()
    assert [str(tmp_path / "config.json") in one for one in found] == [True] * 3
    assert ["cannot be read within 0.1 s" in one for one in found] == [True, True, False]
    assert len(began) == 2  # no third thread hangs
    assert "earlier reads" in found[2]
