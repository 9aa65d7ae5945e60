"""Bounded reading of JSON objects from files that anyone may have written."""

import json
from pathlib import Path
from typing import Any

from gpuward.controller.models.errors import MetadataError


def parse_object(text: bytes, source: object) -> dict[str, Any]:
    """Parses a JSON object.

    Raises:
        MetadataError: terminal, naming the source.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{source} is not valid JSON ({error}); replace the file", retryable=False) from error
    if not isinstance(value, dict):
        raise MetadataError(f"{source} holds no JSON object; replace the file", retryable=False)
    return value


def read_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Reads a JSON object of at most `max_bytes` from a file.

    Raises:
        MetadataError: retryable where the file cannot be read, terminal where it is too large or no JSON object.
    """
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise MetadataError(f"{path} cannot be read: {error.strerror or error}", retryable=True) from error
    if len(text) > max_bytes:
        raise MetadataError(f"{path} is larger than {max_bytes} bytes; replace the file", retryable=False)
    return parse_object(text, path)
