"""Takes the values of stored secrets out of what the API and webhooks tell. Pure.

A manifest may hold a secret's value as plain text: in `env`, in a flag, in a URL. Whatever tells of it then shows a
mark in its place: specs, differences of revisions, events and messages. Every way out asks here, so no view must think
of it.

A body that holds no value is looked through and stays as it is. One that holds some is read as JSON: what users write
and sentences are redacted wherever a value stands in them. Names, codes and keys are what clients work with, and a weak
secret may be an ordinary word, so a value that could be a name stays where it is one.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from schemas.manifest.problems import join_path
from schemas.redaction import LEAST_BYTES, MARK

_FEW: Final = 48  # values that are looked for one by one: each takes 0.1 to 0.4 ms a MiB
_PIECE: Final = 2**20  # bytes that are looked through at once for many values
_SLOTS_BITS: Final = 20
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_DOWN: Final = np.uint64(64 - _SLOTS_BITS)
_LIKE_A_NAME: Final = re.compile(r"[a-z0-9]+([-_.:/][a-z0-9]+)*|[A-Za-z]+")
# What users write, in specs and in their differences.
_WRITTEN: Final = frozenset({"env", "args", "command", "labels", "url", "old", "new", "old_spec", "new_spec"})
_NAMES_A_SECRET: Final = "secret"  # noqa: S105 - the key of a reference
# Names and places of other things, which clients check; a token is none.
_NAMES: Final = frozenset({"model", "image", "aliases", "workers", "gpus"})
_PLACES: Final = frozenset({"adapters", "volumes"})
_DATA: Final = b"data: "  # a line of a server-sent event


@dataclass(frozen=True, slots=True)
class Use:
    """A field of a spec that holds a secret's value as plain text. `whole`: it holds nothing else."""

    path: str
    secret: str
    whole: bool


class Redaction:
    """The values that are not shown.

    Args:
        values: of stored secrets, by their names. Those shorter than `LEAST_BYTES` count for nothing.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        names: dict[str, list[str]] = defaultdict(list)
        for name, value in sorted((values or {}).items()):
            if len(value.strip().encode()) >= LEAST_BYTES:
                names[value.strip()].append(name)
        self._names = dict(names)
        self._anywhere = _pattern(value for value in names if not _LIKE_A_NAME.fullmatch(value))
        self._in_texts = _pattern(names)
        self._forms = sorted({form for value in names for form in _forms(value)})
        self._heads: dict[bytes, tuple[bytes, ...]] = {}
        self._slots = np.zeros(1, dtype=bool)
        if len(self._forms) > _FEW:
            self._index()

    def __bool__(self) -> bool:
        return bool(self._forms)

    def shown(self, body: bytes) -> bytes:
        """JSON, or server-sent events, without the values. The same object where it holds none."""
        if not self._forms or not self._holds_some(body):
            return body
        try:
            return orjson.dumps(self.value(orjson.loads(body)))
        except orjson.JSONDecodeError:
            return b"\n".join(map(self._line, body.split(b"\n")))

    def value(self, parsed: Any, *, written: bool = False) -> Any:
        """A value as JSON has it. `written`: it is what a user has written."""
        if isinstance(parsed, str):
            pattern = self._in_texts if written or " " in parsed else self._anywhere
            return parsed if pattern is None else pattern.sub(MARK, parsed)
        if isinstance(parsed, list):
            return [self.value(one, written=written) for one in parsed]
        if isinstance(parsed, dict):
            return {key: self._field(key, one, written=written) for key, one in parsed.items()}
        return parsed

    def _field(self, key: str, value: Any, *, written: bool) -> Any:
        if key == _NAMES_A_SECRET or (not written and _is_named(key, value)):
            return value
        return self.value(value, written=written or key in _WRITTEN)

    def holds(self, text: str) -> bool:
        """Whether a text holds one of the values."""
        return self._in_texts is not None and self._in_texts.search(text) is not None

    def uses(self, spec: Mapping[str, Any]) -> Iterator[Use]:
        """The fields of a spec, as JSON, that hold a value where users write texts of their own."""
        for path, text in _texts(spec, "", written=False) if self._names else ():
            for value in dict.fromkeys(self._found(text)):
                yield Use(path, self._names[value][0], whole=text.strip() == value)

    def _found(self, text: str) -> Iterator[str]:
        pattern = self._in_texts
        for found in pattern.finditer(text) if pattern is not None else ():
            yield found.group()

    def _line(self, line: bytes) -> bytes:
        if not self._holds_some(line):
            return line
        head = _DATA if line.startswith(_DATA) else b""
        try:
            return head + orjson.dumps(self.value(orjson.loads(line[len(head) :])))
        except orjson.JSONDecodeError:  # a form that is not known here: nothing of it is trusted
            for form in self._forms:
                line = line.replace(form, MARK.encode())
            return line

    def _holds_some(self, body: bytes) -> bool:
        if not self._heads:
            return any(form in body for form in self._forms)
        return any(self._holds_in_piece(body, start) for start in range(0, len(body), _PIECE))

    def _index(self) -> None:
        """Many values are looked for at once, by a table of what eight bytes they begin with."""
        heads: dict[bytes, list[bytes]] = defaultdict(list)
        for form in self._forms:
            heads[form[:LEAST_BYTES]].append(form)
        self._heads = {head: tuple(forms) for head, forms in heads.items()}
        self._slots = np.zeros(2**_SLOTS_BITS, dtype=bool)
        self._slots[_slots_of(np.frombuffer(b"".join(self._heads), dtype="<u8"))] = True

    def _holds_in_piece(self, body: bytes, start: int) -> bool:
        count = min(_PIECE, len(body) - start - LEAST_BYTES + 1)
        if count <= 0:
            return False
        words = np.ndarray((count,), dtype="<u8", buffer=body, offset=start, strides=(1,))
        for at in np.flatnonzero(self._slots[_slots_of(words)]).tolist():
            begin = start + at
            forms = self._heads.get(body[begin : begin + LEAST_BYTES])
            if forms is not None and body.startswith(forms, begin):
                return True
        return False


def _is_named(key: str, value: Any) -> bool:
    if key in _PLACES:
        return isinstance(value, dict)
    names = value if isinstance(value, list) else [value]
    return key in _NAMES and all(isinstance(one, str) for one in names)


def _slots_of(words: Any) -> Any:
    return (words * _SPREAD) >> _DOWN


def _pattern(values: Iterator[str] | Mapping[str, Any]) -> re.Pattern[str] | None:
    longest_first = sorted(values, key=lambda value: (-len(value), value))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _forms(value: str) -> Iterator[bytes]:
    """The value as JSON may hold it."""
    for ascii_alone in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_alone)[1:-1].encode(errors="surrogateescape")


def _texts(value: Any, path: str, *, written: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if written:
            yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if key != _NAMES_A_SECRET:
                yield from _texts(one, join_path(path, key), written=written or key in _WRITTEN)
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _texts(one, join_path(path, index), written=written)


NOTHING_REDACTED: Final = Redaction()
