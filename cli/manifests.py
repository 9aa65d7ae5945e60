"""Reads the manifests of a file or of stdin, and writes them as the API takes them."""

import sys
from pathlib import Path
from typing import Final

from cli.api import Json
from cli.errors import CliError, UsageError
from schemas.manifest.parse import Manifest, parse_manifests
from schemas.manifest.problems import ManifestError

_STDIN: Final = "-"


def read_manifests(file: str) -> list[Manifest]:
    """Reads the manifests of a file; `-` is stdin.

    Raises:
        UsageError: the file cannot be read.
        CliError: a manifest is not valid. The message lists every problem with its path.
    """
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file: {file} cannot be read: {error}") from error
    try:
        return parse_manifests(text)
    except ManifestError as error:
        lines = [f"  {problem}" for problem in error.problems]
        raise CliError("\n".join([f"{file} is not valid; nothing was changed:", *lines])) from error


def manifest_as_json(manifest: Manifest) -> Json:
    """The manifest as the user wrote it, without defaults, since the server sets those."""
    written = manifest.model_dump(mode="json", exclude_unset=True)
    return {"kind": manifest.kind, "name": manifest.name, **written}


def spec_as_json(manifest: Manifest) -> Json:
    """The manifest without kind and name."""
    return {key: value for key, value in manifest_as_json(manifest).items() if key not in ("kind", "name")}
