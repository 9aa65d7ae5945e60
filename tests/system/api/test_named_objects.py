"""Every verb that takes the name of an object, with the name of nothing and with odd ones, against the real API."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from cli.app import app
from cli.transport import connection
from cli.waiting import wait
from support.command_texts import verbs
from support.leading.served_api import ServedApi

USAGE, NOT_FOUND = 2, 3
BEFORE: Final = {
    "get": ["deployments"], "describe": ["deployment"], "delete": ["--yes"], "wait": ["--timeout", "2s"],
    "key update": ["--rpm", "3"], "secret scope": ["--for", "all"],
}  # fmt: skip
BEHIND: Final = {"scale": ["2"], "cache prune": ["hf:org/model"], "label worker": ["gpuward.io/zone=a"]}
# These take no name of an object, make it, or speak of this host alone.
OTHERS: Final = {
    "run", "backup", "restore", "context add", "context use", "context show", "context delete", "completion",
    "ca issue", "secret set", "assets",
}  # fmt: skip
# A path would end elsewhere with these.
INVALID: Final = ("", ".", "..", "a\nb", "\x1b[2J")
# No object has such a name, and the API is asked for just that.
ODD: Final = ("nothing", "a/b", "../keys", "%2e%2e", "a b", "x?y=1", "#x", "A" * 300, "deploymént", "*", "--all", "-")


def named() -> list[str]:
    """The verbs with an argument that names an object."""
    taking = (name for name, command in verbs().items() if any(p.param_type_name == "argument" for p in command.params))
    return sorted(set(taking) - OTHERS)


def call(verb: str, name: str) -> list[str]:
    return [*verb.split(), *BEFORE.get(verb, []), "--", name, *BEHIND.get(verb, [])]


@pytest.fixture
def calls(api: ServedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The API runs, and the environment names it, without the settings of this host."""
    monkeypatch.setattr(wait, "POLL_S", 0.01)
    monkeypatch.setattr(connection, "_SYSTEM_DATA_DIR", tmp_path / "system")
    for name, value in (("HOME", str(tmp_path)), ("GPUWARD_URL", api.url), ("GPUWARD_API_KEY", api.keys["admin"])):
        monkeypatch.setenv(name, value)


async def gpuward(words: list[str]) -> tuple[int, str]:
    """Exit code and what is said on stderr."""
    async with asyncio.timeout(60):
        done: Any = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    return done.exit_code, done.stderr


def test_the_table_has_all_verbs() -> None:
    assert set(verbs()) >= OTHERS
    assert set(named()) >= {"scale", "logs", "ps", "describe", "cordon", "key revoke", "rollout undo", *BEFORE, *BEHIND}


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("verb", named())
async def test_names_of_nothing(verb: str) -> None:
    for name in ODD:
        code, said = await gpuward(call(verb, name))
        # Where several kinds can be named, what stands before a slash is one.
        assert code == NOT_FOUND or ("/" in name and code == USAGE), (name, code, said)
        assert name.partition("/")[0] in said, (name, said)
        assert said.count("\n") == 1, "one line, without a trace"
    for name in INVALID:
        code, said = await gpuward(call(verb, name))
        assert code == USAGE, (name, code, said)
        assert "not a valid name" in said
        assert "\x1b" not in said
