"""The short list of words that this project does not use, held over everything that a reader meets.

Read are identifiers, file names, strings, comments, docstrings, pages and `--help` of every verb. An identifier counts
as its words: snake case and camel case are split. Landed migrations keep their text, and the tables, columns and
triggers that they name keep their names everywhere.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.app import VERBS, app, imported

ROOT = Path(__file__).parents[2]
FOLDERS = ("controller", "gateway", "agent", "http1", "schemas", "cli", "tests", "bench", "docs", "deploy")
FILES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "Makefile",
    "Dockerfile",
    "docker-compose.yml",
    "pyproject.toml",
    ".ci/run",
    ".ci/packages",
)
TEXT = {".md", ".yaml", ".yml", ".sh", ".toml", ".c"}
UNCHANGEABLE = "controller/store/migrations/versions"
FORBIDDEN = re.compile(
    r"\b(?:nobody|somebody|anybody|whom|whoever|reign(?:s|ed|ing)?|depos(?:e|es|ed|ing)|push(?:es|ed|ing)? out"
    r"|waiters?|occupants?|newcomers?|(?<!there )is no (?!longer\b|more\b|one\b)[a-z]+)\b"
)
# Only text with one of these can hold one of those, however its words are joined. A file without any is not parsed.
MAYBE = re.compile(
    r"(?i:nobody|somebody|anybody|whom|whoever|reign|depos|push|waiter|occupant|newcomer)|[iI]s[\W_]*[nN]o(?![a-z])"
)
# What stands, by file and words, with the reason. An entry that matches nothing any more fails the test.
ALLOWED: dict[tuple[str, str], str] = {
    ("controller/store/embedded/accounts.py", "nobody"): "the system account of that name",
    ("controller/store/embedded/server.py", "nobody"): "the system account of that name",
    ("tests/store/test_embedded.py", "nobody"): "the system account of that name",
    ("tests/system/cli/test_up.py", "nobody"): "the system account of that name",
}


@dataclass(frozen=True)
class Found:
    """One place."""

    file: str
    line: int
    words: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.words!r} in {self.text!r}"


def as_words(text: str) -> str:
    """Lower-case text of one line; identifiers in it are split into their words."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)
    return " ".join(apart.split()).lower()


def state_names() -> set[str]:
    """The names of landed state that hold such words."""
    texts = [path.read_text() for path in (ROOT / UNCHANGEABLE).iterdir() if path.suffix in {".sql", ".py"}]
    names = {name for text in texts for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)}
    return {name for name in names if FORBIDDEN.search(as_words(name))}


STATE = re.compile("|".join(rf"\b{name}\b" for name in state_names()) or "$.")


def _look(file: str, line: int, text: str) -> Iterator[Found]:
    plain = as_words(STATE.sub("…", text))
    for match in FORBIDDEN.finditer(plain):
        begin, end = max(0, match.start() - 30), match.end() + 30
        yield Found(file, line, match.group(), plain[begin:end])


def _look_in_python(file: str, source: str) -> Iterator[Found]:
    for node in ast.walk(ast.parse(source)):  # neighbouring literals are one constant here
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _look(file, node.lineno, node.value)
    comments: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield from _look(file, token.start[0], token.string)
        elif token.type == tokenize.COMMENT:  # a comment of several lines is one text
            if comments and comments[-1].start[0] + 1 != token.start[0]:
                yield from _look_in_comment(file, comments)
                comments = []
            comments.append(token)
    yield from _look_in_comment(file, comments)


def _look_in_comment(file: str, comments: list[tokenize.TokenInfo]) -> Iterator[Found]:
    if comments:
        yield from _look(file, comments[0].start[0], " ".join(c.string.lstrip("# ") for c in comments))


def _look_in_text(file: str, text: str) -> Iterator[Found]:
    """A paragraph is one text, so that phrases are found across its lines."""
    line = 1
    for paragraph in text.split("\n\n"):
        yield from _look(file, line, re.sub(r"\n\s*#", " ", paragraph))
        line += paragraph.count("\n") + 2


def _files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", *TEXT} and not path.relative_to(ROOT).is_relative_to(UNCHANGEABLE):
                yield path
    yield from (ROOT / name for name in FILES)


def _look_everywhere() -> Iterator[Found]:
    this = Path(__file__)
    for path in _files():
        file = str(path.relative_to(ROOT))
        yield from _look(file, 0, file.replace("/", " ").replace(".", " "))
        if path != this:
            look = _look_in_python if path.suffix == ".py" else _look_in_text
            text = path.read_text(encoding="utf-8")
            if MAYBE.search(text):
                yield from look(file, text)


def _verbs(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _verbs(inner, *path, name)


def test_none_of_these_words_is_used() -> None:
    found = list(dict.fromkeys(_look_everywhere()))
    unused = set(ALLOWED) - {(f.file, f.words) for f in found}
    assert not unused, f"allowed but not found any more: {sorted(unused)}"
    left = [f for f in found if (f.file, f.words) not in ALLOWED]
    if left:
        by_folder = Counter("/".join(f.file.split("/")[:2]) for f in left)
        pytest.fail("\n".join((f"{len(left)} uses: {dict(by_folder.most_common())}", *map(str, left))), pytrace=False)


@pytest.mark.parametrize(
    "verb", [(), *(path for verb in VERBS for path in _verbs(imported(verb.name), verb.name))], ids=" ".join
)
def test_no_help_uses_them(verb: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*verb, "--help"], env={"TERM": "dumb", "COLUMNS": "500"})
    assert shown.exit_code == 0, shown.output
    found = list(map(str, _look(" ".join(verb) + " --help", 0, re.sub("[\u2500-\u257f]", " ", shown.output))))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Nobody",
        "push_outs = 1; push_out",
        "PushedOut",
        "they push\nout",
        "a Waiter",
        "is no name",
        "wasDeposed",
        "reign's",
    ],
)
def test_such_words_are_seen(text: str) -> None:
    assert MAYBE.search(text)
    assert list(_look("file", 1, text))


@pytest.mark.parametrize(
    "text", ["is no longer", "is not", "foreign", "sovereign", "push", "await", "is none", "there is no data"]
)
def test_others_are_not(text: str) -> None:
    assert not list(_look("file", 1, text))
