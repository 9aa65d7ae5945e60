"""Where the fields of manifests are in their files: document and line. Pure."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from schemas.manifest.problems import FieldProblem

_LINE: Final = re.compile(r"line (\d+)(?:, column \d+)?: ")  # as messages of the YAML parser begin
_END: Final = re.compile(r"[.\[]")  # of a key in a path
_ITEM: Final = re.compile(r"\[(\d+)\](?:\.|(?=\[)|$)")


class _Manifest(NamedTuple):
    """A manifest as a tree of YAML nodes."""

    node: Any
    document: int  # from 1
    listed: bool  # an item of a list, which its document is


class Places:
    """The places in the text of a file."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text
        self._fields: dict[Any, dict[str, tuple[Any, Any]]] = {}  # by node

    @cached_property
    def _manifests(self) -> list[_Manifest]:
        """Empty for a text that is not valid YAML, such as JSON with tabs."""
        import yaml  # noqa: PLC0415 - only errors need it

        from schemas.manifest.strict_yaml import document_nodes  # noqa: PLC0415 - as above

        found: list[_Manifest] = []
        try:
            for number, document in document_nodes(self._text):
                if isinstance(document, yaml.SequenceNode):
                    found += [_Manifest(node, number, True) for node in document.value]
                else:
                    found.append(_Manifest(document, number, False))
        except yaml.YAMLError:
            return []
        return found

    def line_of(self, problem: FieldProblem, number: int | None = None) -> str:
        """The problem as `chat.yaml:12, document 2: resources.gpus: ...`.

        A problem without a path may be one of the text itself, such as its depth, so the text is not read for it.

        Args:
            problem: its path begins with `[number]` where there are several manifests and `number` is None.
            number: of the manifest in the file; None: as the path has it.
        """
        path = problem.path
        if not path and number is None:
            at = _LINE.match(problem.message)
            return f"{self._file}:{at[1]}: {problem.message[at.end() :]}" if at else f"{self._file}: {problem}"
        if number is None:
            item = _ITEM.match(path) if len(self._manifests) > 1 else None
            number, path = (int(item[1]), path[item.end() :]) if item else (0, path)
        if number >= len(self._manifests):
            return f"{self._file}: {problem}"
        manifest = self._manifests[number]
        where = f"{self._file}:{self._line(manifest.node, path)}"
        if manifest.listed:
            where += f", manifest {number + 1}"
        elif self._manifests[-1].document > 1:
            where += f", document {manifest.document}"
        return f"{where}: {FieldProblem(path, problem.message)}"

    def _line(self, node: Any, path: str) -> int:
        """The line of the field, else of the nearest field around it that is written; from 1."""
        line: int = node.start_mark.line + 1
        while path:
            found = self._step(node, path)
            if found is None:
                break
            at, node, path = found
            line = at.start_mark.line + 1
        return line

    def _step(self, node: Any, path: str) -> tuple[Any, Any, str] | None:
        """The node that shows the line of the first step of the path, the node of its value, the rest of the path."""
        if isinstance(node.value, str):
            return None
        item = _ITEM.match(path)
        if item is not None and not (node.value and isinstance(node.value[0], tuple)):
            inner = node.value[int(item[1])] if int(item[1]) < len(node.value) else None
            return None if inner is None else (inner, inner, path[item.end() :])
        fields = self._fields_of(node)
        ends = (len(path), *(mark.start() for mark in reversed(list(_END.finditer(path)))))
        for end in ends:  # the longest first, since keys may have dots
            if (pair := fields.get(path[:end])) is not None:
                return *pair, path[end:].removeprefix(".")
        return None

    def _fields_of(self, node: Any) -> Mapping[str, tuple[Any, Any]]:
        """Key and value of each field of a mapping; made once, since a manifest may have many problems."""
        fields: dict[str, tuple[Any, Any]] | None = self._fields.get(node)
        if fields is None:
            fields = self._fields[node] = {}
            for pair in node.value:
                if isinstance(pair, tuple):
                    fields.setdefault(str(pair[0].value), pair)
        return fields
