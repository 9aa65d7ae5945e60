"""What messages, help and pages tell a reader to run exists: its verb and its options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.app import VERBS
from support.command_texts import assert_is_a_command, commands_of
from support.pages import ROOT

PACKAGES = ("agent", "cli", "controller", "gateway", "http1", "schemas")
# In code marks, or as the whole of a text. Elsewhere "gpuward" begins a command where a verb follows.
MARKED = re.compile(r"(?:`|<code>|^)gpuward ([a-z][^`<\n]*)", re.MULTILINE)
NAMED = re.compile(rf"\bgpuward ((?:{'|'.join(verb.name for verb in VERBS)})\b[^`<\n;,)]*)")
PROSE = re.compile(r"(?:for|of|on|is|takes|keeps|was|and|in)\b")


def texts_of_python(file: Path) -> Iterator[str]:
    """Every text, each field of an f-string as NAME; docstrings too."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "NAME" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def texts_of_page(file: Path) -> Iterator[str]:
    """The file, with each field of a template as NAME and each text of its own on a line of its own."""
    text = re.sub(r"\$\{[^{}]*\}", "NAME", file.read_text(encoding="utf-8"))
    yield re.sub(r"[`\"]", "\n", text)


def told(text: str) -> list[list[str]]:
    """The words of each command in a text."""
    found = {*MARKED.findall(text), *NAMED.findall(text)}
    lines = [re.split(r"[;,)]|\. |: ", one)[0] for one in found if not PROSE.match(one)]
    return [words for line in lines for words in commands_of(f"gpuward {line.replace(chr(39), '')}")]


SOURCES = [
    *(file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))),
    *sorted((ROOT / "ui/src").rglob("*.ts*")),
]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_exist(file: Path) -> None:
    for text in texts_of_python(file) if file.suffix == ".py" else texts_of_page(file):
        for words in told(text):
            assert_is_a_command(words, file.name)


@pytest.mark.parametrize(
    "text", ["<code>gpuward create key --role viewer</code>", "run `gpuward key make`", "gpuward agent --token T"]
)
def test_what_does_not_exist_is_found(text: str) -> None:
    (words,) = told(text)
    with pytest.raises(AssertionError):
        assert_is_a_command(words, "here")
