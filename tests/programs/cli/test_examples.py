"""The examples in `--help`: each is a valid call of its verb."""

import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.app import VERBS, app, imported
from cli.examples import EXAMPLES, examples_of
from support.command_texts import verbs

REDIRECTIONS = ("<", ">")


def calls_in(example: str) -> list[list[str]]:
    """The words after each `gpuward` of a shell's line, without redirections."""
    calls = []
    for part in example.split(" | "):
        words = shlex.split(part)
        cut = next((n for n, word in enumerate(words) if word in REDIRECTIONS), len(words))
        if words[0] == "gpuward":
            calls.append(words[1:cut])
    return calls


def parse(words: list[str]) -> str:
    """Parses a call with the parsers of the program and of its verb, without running it; returns the verb."""
    typer.main.get_command(app).make_context("gpuward", list(words))
    if words[0] == "--context":
        words = words[2:]
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in verbs())
    verbs()[name].make_context(name, words[len(name.split()) :])
    return name


@pytest.mark.parametrize("name", sorted(verbs()))
def test_a_verb_has_two_examples_which_its_parser_takes(name: str) -> None:
    examples = examples_of(name)
    assert len(set(examples)) == 2
    for example in examples:
        (words,) = calls_in(example)
        if words != ["--version"]:
            assert parse(words) == name


def test_no_example_is_of_an_unknown_verb() -> None:
    assert set(EXAMPLES) == set(verbs())


@pytest.mark.parametrize("words", [["get"], ["scale"], ["apply", "--file"], ["ps", "--nonsense"]])
def test_an_invalid_call_is_noticed(words: list[str]) -> None:
    with pytest.raises(typer.TyperException):
        parse(words)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_shows_the_examples(verb: Any) -> None:
    inner = getattr(imported(verb.name), "commands", {})
    for words in ([verb.name], *([verb.name, name] for name in inner)):
        shown = CliRunner().invoke(app, [*words, "--help"])
        assert shown.exit_code == 0
        for example in examples_of(" ".join(words)):
            assert example in shown.output


def test_help_lists_each_verb_once_below_the_title_of_its_group() -> None:
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in {v.name for v in VERBS}]
    assert sorted(listed) == sorted(verb.name for verb in VERBS)
    assert lines.index("Deploy models:") < next(n for n, line in enumerate(lines) if line.startswith("  apply"))
