"""Bounded reading of JSON objects from untrusted files."""

import json
from typing import Any

from controller.model_files.errors import MetadataError
from controller.model_files.files import ModelFiles, where


def parse_object(text: bytes, source: str) -> dict[str, Any]:
    """Parses a JSON object. Python's recursion limit bounds its depth.

    Raises:
        MetadataError: terminal; names the source.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{source} is not valid JSON ({error}); replace the file", retryable=False) from error
    if not isinstance(value, dict):
        raise MetadataError(f"{source} is not a JSON object; replace the file", retryable=False)
    return value


def read_object(files: ModelFiles, name: str, max_bytes: int) -> dict[str, Any]:
    """Reads a JSON object of at most `max_bytes` from one of a model's files.

    Raises:
        MetadataError: retryable if the file cannot be read, terminal if it is too large or not a JSON object.
    """
    source = where(files, name)
    if files.sizes[name] > max_bytes:
        raise MetadataError(f"{source} is larger than {max_bytes} bytes; replace the file", retryable=False)
    return parse_object(files.read(name, 0, max_bytes), source)
