"""Reads the manifests of files, folders and stdin, and writes them in the form of the API."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Final, NoReturn

from cli.errors import CliError, RefusedError, UsageError
from cli.manifest.places import Places
from cli.transport.paths import Json
from schemas.manifest.parse import Manifest, parse_manifests
from schemas.manifest.problems import FieldProblem, ManifestError
from schemas.manifest.strict_yaml import MAX_TEXT_BYTES

_STDIN: Final = "-"
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MANIFESTS: Final = "manifests"
_NUMBER: Final = re.compile(r"(?:manifests)?\[(\d+)\]\.?")  # as paths of problems begin
_MAGIC: Final = frozenset("*?[")
_SCHEME: Final = re.compile("[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Manifests(list[Manifest]):
    """Manifests, and where each is in its file."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: list[tuple[Places, int]] = []  # of each manifest: its file, and its number there

    def take(self, file: str, text: str, manifests: Sequence[Manifest]) -> None:
        places = Places(_shown(file), text)
        self._sources += [(places, number) for number in range(len(manifests))]
        self += manifests

    def body(self) -> Json:
        """The body of a request, in which the server sets the defaults."""
        return {_MANIFESTS: [manifest_as_json(manifest) for manifest in self]}

    @contextmanager
    def located(self, *fields: str) -> Iterator[None]:
        """In this block the error of a refused manifest has file, document and line of each problem.

        `fields`: those of the request's body besides `manifests`.
        """
        try:
            yield
        except RefusedError as error:
            if not error.problems:
                raise
            head = str(error).partition("\n")[0]
            lines = [f"  {self._line_of(path, message, fields)}" for path, message in error.problems]
            raise RefusedError("\n".join([head, *lines]), error.code, error.problems) from None

    def _line_of(self, path: str, message: str, fields: Sequence[str]) -> str:
        item = _NUMBER.match(path)
        of_body = item is None and re.split(r"[.\[]", path, maxsplit=1)[0] in (_MANIFESTS, *fields)
        number = int(item[1]) if item else 0
        if of_body or number >= len(self) or (item is None and len(self) > 1):
            return str(FieldProblem(path, message))
        places, at = self._sources[number]
        return places.line_of(FieldProblem(path[item.end() :] if item else path, message), at)


def read_manifests(sources: Sequence[str]) -> Manifests:
    """The manifests of files; folders, in the order of names; patterns such as `*.yaml`; and stdin (`-`).

    Raises:
        UsageError: a source cannot be read, or has no manifest; or stdin is named twice.
        CliError: a manifest is not valid, or two have the same name. The message lists every problem with its place.
    """
    manifests = Manifests()
    problems: list[str] = []
    source_of: dict[tuple[str, str], str] = {}
    for file in _files_of(sources):
        text = _text_of(file)
        try:
            parsed = parse_manifests(text)
        except ManifestError as error:
            places = Places(_shown(file), text)
            lines = [f"  {places.line_of(problem)}" for problem in error.problems]
            problems += [f"{_shown(file)} is not valid; nothing was changed:", *lines]
            continue
        for manifest in parsed:
            other = source_of.setdefault((manifest.kind, manifest.name), file)
            if other != file:
                problems.append(f"{file}: {manifest.name!r} is in {other} too; nothing was changed: rename one")
        manifests.take(file, text, parsed)
    if problems:
        raise CliError("\n".join(problems))
    return manifests


def _shown(file: str) -> str:
    return "stdin" if file == _STDIN else file


def _files_of(sources: Sequence[str]) -> list[str]:
    files: list[str] = []
    for source in sources:
        if source == _STDIN:
            files.append(source)
        elif _SCHEME.match(source):
            raise UsageError(f"--file: {source} is an address, and none is read: download the file, read it, apply it")
        elif os.path.isdir(source):  # noqa: PTH112 - Path's own throws where a folder on the way cannot be entered
            files += _of_folder(source)
        elif _MAGIC.intersection(source) and not os.path.exists(source):  # noqa: PTH110 - as above
            files += sorted(glob(source)) or _refuse(  # noqa: PTH207 - a pattern may start at the root
                f"no file is named like {source}"
            )
        else:
            files.append(source)
    if files.count(_STDIN) > 1:
        raise UsageError("--file: stdin (`-`) can be read once")
    return list(dict.fromkeys(files))  # a file that is named twice is read once


def _of_folder(folder: str) -> list[str]:
    try:
        files = sorted(str(file) for file in Path(folder).iterdir() if _is_manifest(file))
    except OSError as error:
        raise UsageError(f"--file: {folder} cannot be read: {error}") from error
    return files or _refuse(f"the folder {folder} has no file whose name ends with {', '.join(_SUFFIXES)}")


def _is_manifest(file: Path) -> bool:
    return file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()


def _refuse(why: str) -> NoReturn:
    raise UsageError(f"--file: {why}")


def _text_of(file: str) -> str:
    """The text of a file, up to a byte more than the parser accepts."""
    try:
        if file == _STDIN:
            return sys.stdin.read(MAX_TEXT_BYTES + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MAX_TEXT_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file: {file} cannot be read: {error}") from error


def manifest_as_json(manifest: Manifest) -> Json:
    """The manifest as the user wrote it; the server sets the defaults."""
    written = manifest.model_dump(mode="json", exclude_unset=True)
    return {"kind": manifest.kind, "name": manifest.name, **written}


def spec_as_json(manifest: Manifest) -> Json:
    return {key: value for key, value in manifest_as_json(manifest).items() if key not in ("kind", "name")}
