"""Finds the mark that answers show in place of a secret's value: a manifest that is applied must not hold it.

Else a manifest that was read, and is applied again, would replace the value by the mark.
"""

from collections.abc import Iterator
from typing import Any, Final

from schemas.manifest.problems import FieldProblem, join_path
from schemas.redaction import MARK

_SHOWN: Final = f"contains {MARK}, which answers show in place of a secret's value"


def problems_of_marks(manifest: dict[str, Any], base: str) -> Iterator[FieldProblem]:
    """A problem for each field that holds the mark; its path begins with `base`."""
    for field, value in manifest.items():
        path = join_path(base, field)
        if field == "env" and isinstance(value, dict):
            for variable, text in value.items():
                if any(True for _ in _marked(text, "")):
                    yield FieldProblem(join_path(path, variable), f"{_SHOWN}; name the secret: {{secret: NAME}}")
            continue
        for found in _marked(value, path):
            yield FieldProblem(found, f"{_SHOWN}; write the value that it stands for")


def _marked(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if MARK in value:
            yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _marked(one, join_path(path, key))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _marked(one, join_path(path, index))
