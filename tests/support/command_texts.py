"""Calls of `gpuward` in texts, and whether their verbs and options exist."""

import re
import shlex
from functools import cache
from typing import Any

from cli.app import VERBS, imported


@cache
def verbs() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (verb.name for verb in VERBS):
        command = imported(name)
        inner = getattr(command, "commands", {})
        found |= {f"{name} {verb}": one for verb, one in inner.items()}
        if not inner or command.invoke_without_command:
            found[name] = command
    return found


def commands_of(text: str) -> list[list[str]]:
    """The words after each `gpuward` that begins a command."""
    text = re.sub(r"<<'END'.*?^END$", "", text, flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        splitter = shlex.shlex(line, posix=True, punctuation_chars=True)
        splitter.commenters = "#"
        splitter.wordchars += "=/:.$-[]"
        words: list[str] = []
        program = ""
        inside = False
        for word in [*splitter, ";"]:
            if set(word) <= set("|&;<>()"):
                if inside:
                    found.append(words)
                words, program, inside = [], "", False
            elif inside:
                words.append(word)
            elif word.rpartition("/")[2] == "gpuward" and program != "helm":  # whose release has that name
                inside = True
            program = program or word.strip("|&;<>()")
    return found


def assert_is_a_command(words: list[str], where: str) -> None:
    if not words or words[0].startswith("-") or words[0].isupper():
        return  # `gpuward --help`, or the program by itself
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in verbs()), None)
    assert name is not None, f"{where}: gpuward {' '.join(words)}: no such verb"
    options = {option for one in verbs()[name].params for option in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options]
    assert unknown == [], f"{where}: gpuward {' '.join(words)}"
