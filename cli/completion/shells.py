"""Requests of shells for completion, and the form of answers, by the scripts of `gpuward completion`. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

VARIABLE: Final = "_GPUWARD_COMPLETE"
_SEPARATORS: Final = (":", "=")  # characters at which bash splits words


class Typed(NamedTuple):
    """The words after `gpuward`, the incomplete word, and its start that the shell keeps."""

    words: Sequence[str]
    incomplete: str
    kept: str = ""


def typed(environ: Mapping[str, str]) -> Typed | None:
    """None for another shell or request. Raises `KeyError` or `ValueError` for a missing or an invalid variable."""
    match environ[VARIABLE]:
        case "complete_bash":
            return _typed_in_bash(environ["COMP_WORDS"], int(environ["COMP_CWORD"]))
        case "complete_zsh" | "complete_fish":
            text = environ["_TYPER_COMPLETE_ARGS"]
            words = _split(text)[1:]
            complete = not words or text[-1:].isspace()
            return Typed(words, "") if complete else Typed(words[:-1], words[-1])
        case _:
            return None


def answer(environ: Mapping[str, str], request: Typed, values: Sequence[str]) -> tuple[str, int]:
    """The text to print, and the exit code. The values have no character with a meaning for shells."""
    if environ[VARIABLE] == "complete_bash":
        return "\n".join(value.removeprefix(request.kept) for value in values), 0
    if environ[VARIABLE] == "complete_zsh":
        quoted = "\n".join('"{}"'.format(value.replace(":", r"\\:")) for value in values)
        return f"_arguments '*: :(({quoted}))'" if values else "", 0
    if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if values else 1
    return "\n".join(values), 0


def _typed_in_bash(text: str, at: int) -> Typed:
    """Joins words that bash has split at colons and equals signs."""
    parts = _split(text)[: at + 1]
    parts += [""] * (at + 1 - len(parts))
    words: list[str] = []
    joins = False
    for part in parts[1:]:
        if part in _SEPARATORS and words:
            words[-1] += part
            joins = True
        elif joins:
            words[-1] += part
            joins = False
        else:
            words.append(part)
    incomplete = words.pop() if words else ""
    split = parts[-1] in _SEPARATORS or (len(parts) > 1 and parts[-2] in _SEPARATORS)
    end = max(incomplete.rfind(separator) for separator in _SEPARATORS) + 1 if split else 0
    return Typed(words, incomplete, incomplete[:end])


def _split(text: str) -> list[str]:
    """The words of a line that may have an open quote."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
