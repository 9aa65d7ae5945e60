"""What the command line knows of its verbs before it imports one, and what a call imports."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest
import typer
from typer.testing import CliRunner

import cli.verbs
from cli.app import app
from cli.verb_table import VERBS

SLOW = ("aiohttp", "asyncio", "pydantic", "rich", "yaml")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_table_says_what_the_verb_says(verb):
    command = typer.main.get_group(import_module(verb.module).app).commands[verb.name]
    assert verb.help == command.get_short_help_str(500)


def test_every_verb_is_in_the_table():
    modules = {"cli.up.verb", "cli.daemons", *(f"cli.verbs.{one.name}" for one in iter_modules(cli.verbs.__path__))}
    apps = [found.app for found in map(import_module, sorted(modules)) if hasattr(found, "app")]
    names = [name for one in apps for name in typer.main.get_group(one).commands]
    assert sorted(names) == sorted(verb.name for verb in VERBS)


def test_a_misspelt_verb_is_answered_with_those_that_are_like_it():
    answer = CliRunner().invoke(app, ["deployy"])
    assert answer.exit_code == 2
    assert CliRunner().invoke(app, ["descibe"]).output.rstrip().endswith("Did you mean 'describe'?")


def imported(*words: str, **env: str) -> set[str]:
    """The packages that a call of the command line has imported at its end."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('imported', *sys.modules, file=sys.stderr));"
        "from cli.main import main; main()"
    )
    called = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=60, env=env
    )
    (line,) = (line for line in called.stderr.splitlines() if line.startswith("imported"))
    return set(line.split())


@pytest.mark.parametrize("words", [("--help",), ("version",), ("nonsense",)], ids=" ".join)
def test_a_call_imports_little(words):
    found = imported(*words, GPUWARD_URL="http://127.0.0.1:1", HOME="/nowhere")
    assert found.isdisjoint(SLOW)
    assert not {name for name in found if name.startswith("controller")}


def test_completion_of_verbs_imports_none_of_them():
    env = {"_GPUWARD_COMPLETE": "complete_bash", "COMP_WORDS": "gpuward de", "COMP_CWORD": "1"}
    found = imported(**env)
    assert found.isdisjoint({*SLOW, *(verb.module for verb in VERBS)})


@pytest.mark.parametrize(
    "words", [("get", "workers"), ("ps",), ("describe", "worker", "w1"), ("plan", "-f", "-")], ids=" ".join
)
def test_a_verb_that_asks_and_prints_needs_no_event_loop(words):
    found = imported(*words, GPUWARD_URL="http://127.0.0.1:1", HOME="/nowhere")
    assert found.isdisjoint({"aiohttp", "cli.loop_transport"})
