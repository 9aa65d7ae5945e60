"""What the command line knows of its verbs before it imports one, and what a call imports."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest
from typer.testing import CliRunner

import cli.local
import cli.verbs
from cli.app import VERBS, app, commands_of

SLOW = ("aiohttp", "asyncio", "pydantic", "rich", "yaml")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_table_says_what_the_verb_says(verb):
    command = commands_of(import_module(verb.module).app)[verb.name]
    assert verb.help == command.get_short_help_str(500)


def test_every_verb_is_in_the_table():
    rooms = (cli.verbs, cli.local)
    modules = {f"{room.__name__}.{one.name}" for room in rooms for one in iter_modules(room.__path__)} | {"cli.up.verb"}
    apps = [found.app for found in map(import_module, sorted(modules)) if hasattr(found, "app")]
    names = [name for one in apps for name in commands_of(one)]
    assert sorted(names) == sorted(verb.name for verb in VERBS)


GROUPS = """
import sys
from importlib import import_module
from cli.app import commands_of
from cli.app import VERBS
verb = next(verb for verb in VERBS if verb.name == sys.argv[1])
print(*commands_of(import_module(verb.module).app)[verb.name].commands)
"""


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_group_is_whole_although_its_module_alone_is_imported(verb):
    """Another module may add to it: then that one must stand in the table."""
    for other in VERBS:
        import_module(other.module)
    command = commands_of(import_module(verb.module).app)[verb.name]
    if not hasattr(command, "commands"):
        return
    alone = subprocess.run([sys.executable, "-c", GROUPS, verb.name], capture_output=True, text=True, check=True)
    assert alone.stdout.split() == list(command.commands)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_its_help_is_plain_text(verb):
    for flag in ("--help", "-h"):
        shown = CliRunner().invoke(app, [verb.name, flag])
        assert shown.exit_code == 0
        assert shown.output.startswith(f"Usage: gpuward {verb.name} ")
        assert shown.output.isascii()


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
    "words",
    [
        ("get", "workers"),
        ("get", "workers", "w1", "w2"),
        ("delete", "a", "b"),
        ("ps",),
        ("describe", "worker", "w1"),
        ("plan", "-f", "-"),
        ("wait", "a", "--timeout", "0s"),
        ("ps", "-w"),
    ],
    ids=" ".join,
)
def test_a_verb_needs_no_event_loop(words):
    found = imported(*words, GPUWARD_URL="http://127.0.0.1:1", HOME="/nowhere")
    assert found.isdisjoint({"aiohttp", "asyncio"})


@pytest.mark.parametrize("word", ["workers", "GPU", "keys"])
def test_the_name_of_a_kind_leads_to_get(gpuward, word):
    done = gpuward(word)
    assert done.exit_code == 2
    assert f"List these objects by: gpuward get {word.lower()}" in done.output
