"""How shells ask for completion, and how they want their answer, by the scripts of `gpuward completion`. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

ASKED: Final = "_GPUWARD_COMPLETE"
_PARTING: Final = (":", "=")  # characters at which bash parts words


class Typed(NamedTuple):
    """The words after `gpuward`, the one that is typed, and how much of it the shell keeps as it is."""

    words: Sequence[str]
    incomplete: str
    kept: str = ""


def typed(environ: Mapping[str, str]) -> Typed | None:
    """What was typed in a shell; None: the shell is unknown, or requests something else.

    Raises:
        KeyError: a variable of the shell's script is missing.
        ValueError: one is not as the script writes it.
    """
    match environ[ASKED]:
        case "complete_bash":
            return _typed_in_bash(environ["COMP_WORDS"], int(environ["COMP_CWORD"]))
        case "complete_zsh" | "complete_fish":
            text = environ["_TYPER_COMPLETE_ARGS"]
            words = _split(text)[1:]
            whole = not words or text[-1:].isspace()
            return Typed(words, "") if whole else Typed(words[:-1], words[-1])
        case _:
            return None


def answer(environ: Mapping[str, str], asked: Typed, values: Sequence[str]) -> tuple[str, int]:
    """What to print, and the exit code. The values hold no character that a shell obeys."""
    if environ[ASKED] == "complete_bash":
        return "\n".join(value.removeprefix(asked.kept) for value in values), 0
    if environ[ASKED] == "complete_zsh":
        quoted = "\n".join('"{}"'.format(value.replace(":", r"\\:")) for value in values)
        return f"_arguments '*: :(({quoted}))'" if values else "", 0
    if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if values else 1
    return "\n".join(values), 0


def _typed_in_bash(text: str, at: int) -> Typed:
    """Joins what bash has parted at colons and equals signs."""
    parts = _split(text)[: at + 1]
    parts += [""] * (at + 1 - len(parts))
    words: list[str] = []
    joins = False
    for part in parts[1:]:
        if part in _PARTING and words:
            words[-1] += part
            joins = True
        elif joins:
            words[-1] += part
            joins = False
        else:
            words.append(part)
    incomplete = words.pop() if words else ""
    parted = parts[-1] in _PARTING or (len(parts) > 1 and parts[-2] in _PARTING)
    end = max(incomplete.rfind(one) for one in _PARTING) + 1 if parted else 0
    return Typed(words, incomplete, incomplete[:end])


def _split(text: str) -> list[str]:
    """The words of a line that may have an open quote."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
