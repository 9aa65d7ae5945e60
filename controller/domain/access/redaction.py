"""Withholds values of stored secrets, and lines of logs, from answers of the API, streams and webhooks.

**Secrets.** A manifest may hold a secret's value as plain text: in `env`, in a flag, in a URL. Specs, differences of
revisions, events and messages then show a mark in its place. All output passes here, so views need not care. Only a
body that holds a value is parsed as JSON: texts of users and sentences are redacted wherever a value occurs in them.
Clients work with names, codes and keys, and a weak secret may be an ordinary word, so a value that could be a name
stays if it is used as a name.

**Lines of logs.** An agent marks the part of its report that is a line of a log. The hub puts marks around it, which
stay in all texts made from that message: states, events, evidence, rollouts, attention. Output drops the marks, or the
text between them if its reader may read no logs. The marks are characters that Unicode reserves for internal use; the
hub removes them from all texts of agents. If a message was truncated, one mark may be missing.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from schemas.manifest.problems import join_path
from schemas.redaction_mark import LEAST_BYTES, MARK

_FEW: Final = 48  # up to this number, values are searched one by one first: each takes 0.1 to 0.4 ms a MiB
_SHORT: Final = 256  # bytes, for which an array costs more than a loop
_BATCH: Final = 2**20  # bytes that are searched at once
_SLOTS_BITS: Final = 20
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_DOWN: Final = np.uint64(64 - _SLOTS_BITS)
_LIKE_A_NAME: Final = re.compile(r"[a-z0-9]+([-_.:/][a-z0-9]+)*|[A-Za-z]+")
# What users write, in specs and in their differences.
_WRITTEN: Final = frozenset({"env", "args", "command", "labels", "url", "old", "new", "old_spec", "new_spec"})
_NAMES_A_SECRET: Final = "secret"  # noqa: S105 - the key of a reference
# Names and places of other objects, which clients check; a token is never among them.
_NAMES: Final = frozenset({"model", "image", "aliases", "workers", "gpus"})
_PLACES: Final = frozenset({"adapters", "volumes"})
_MARK: Final = MARK.encode()
_DATA: Final = b"data: "  # a line of a server-sent event


@dataclass(slots=True)
class _Node:
    """A node of a radix tree of values."""

    part: bytes = b""  # common to the values below, after the parts of the nodes above
    ends: bool = False  # a value ends here
    more: dict[int, "_Node"] = field(default_factory=dict)  # by the next byte


def _tree_of(values: Sequence[bytes]) -> _Node:
    tree = _Node()
    todo = [(tree, values, 0)]
    while todo:
        node, group, start = todo.pop()
        first, last = min(group), max(group)
        least = min(len(first), len(last))
        end = next((at for at in range(start, least) if first[at] != last[at]), least)
        node.part = first[start:end]
        groups: dict[int, list[bytes]] = defaultdict(list)
        for value in group:
            if len(value) == end:
                node.ends = True
            else:
                groups[value[end]].append(value)
        node.more = {byte: _Node() for byte in groups}
        todo += [(node.more[byte], inner, end) for byte, inner in groups.items()]
    return tree


class MultiPatternSearch:
    """Finds many values of `LEAST_BYTES` or more: a hash table of their first eight bytes, then a radix tree."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._values = frozenset(values)
        by_head: dict[bytes, list[bytes]] = defaultdict(list)
        for value in self._values:
            by_head[value[:LEAST_BYTES]].append(value)
        self._trees = {head: _tree_of(group) for head, group in by_head.items()}
        self._slots = np.zeros(2**_SLOTS_BITS if by_head else 1, dtype=bool)
        self._slots[_slots_of(np.frombuffer(b"".join(by_head), dtype="<u8"))] = True

    def __bool__(self) -> bool:
        return bool(self._values)

    def __contains__(self, body: bytes) -> bool:
        return next(self.spans(body), None) is not None

    def spans(self, body: bytes) -> Iterator[tuple[int, int]]:
        """The positions of values, from left to right, without overlaps; the longest of those with one start."""
        if not self._values or (len(self._values) <= _FEW and not any(value in body for value in self._values)):
            return
        end = 0
        for begin in self._candidates(body):
            if begin >= end and (length := self._length_at(body, begin)):
                end = begin + length
                yield begin, end

    def replaced(self, body: bytes, mark: bytes) -> bytes:
        """The body with a mark in place of each value; the same object if it holds none."""
        parts, end = [], 0
        for begin, after in self.spans(body):
            parts += [body[end:begin], mark]
            end = after
        return b"".join([*parts, body[end:]]) if parts else body

    def _length_at(self, body: bytes, begin: int) -> int:
        """The length of the longest value that starts here; 0 if no value does."""
        node, at, length = self._trees.get(body[begin : begin + LEAST_BYTES]), begin, 0
        while node is not None and body.startswith(node.part, at):
            at += len(node.part)
            if node.ends:
                length = at - begin
            node = node.more.get(body[at]) if at < len(body) else None
        return length

    def _candidates(self, body: bytes) -> Iterator[int]:
        """Positions at which a value may start."""
        places = len(body) - LEAST_BYTES + 1
        if places <= _SHORT:
            yield from [at for at in range(places) if body[at : at + LEAST_BYTES] in self._trees]
            return
        for start in range(0, places, _BATCH):
            count = min(_BATCH, places - start)
            words = np.ndarray((count,), dtype="<u8", buffer=body, offset=start, strides=(1,))
            yield from (np.flatnonzero(self._slots[_slots_of(words)]) + start).tolist()


def _slots_of(words: Any) -> Any:
    return (words * _SPREAD) >> _DOWN


@dataclass(frozen=True, slots=True)
class Use:
    """A field of a spec that holds a secret's value as plain text. `entire`: the value is the complete text."""

    path: str
    secret: str
    entire: bool


class Redaction:
    """The values that are not shown: of stored secrets, by name. Values shorter than `LEAST_BYTES` are ignored."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        names: dict[str, list[str]] = defaultdict(list)
        for name, value in sorted((values or {}).items()):
            if len(value.strip().encode()) >= LEAST_BYTES:
                names[value.strip()].append(name)
        self._names = dict(names)
        self._anywhere = MultiPatternSearch(_raw(value) for value in names if not _LIKE_A_NAME.fullmatch(value))
        self._in_texts = MultiPatternSearch(map(_raw, names))
        self._forms = MultiPatternSearch(form for value in names for form in _forms(value))

    def __bool__(self) -> bool:
        return bool(self._names)

    def shown(self, body: bytes) -> bytes:
        """JSON, or server-sent events, without the values. The same object if it holds none."""
        if not self._forms or body not in self._forms:
            return body
        try:
            return orjson.dumps(self.value(orjson.loads(body)))
        except orjson.JSONDecodeError:
            return b"\n".join(map(self._line, body.split(b"\n")))

    def value(self, parsed: Any, *, written: bool = False) -> Any:
        """A parsed JSON value without the secrets' values. `written`: a user wrote it."""
        if isinstance(parsed, str):
            search = self._in_texts if written or " " in parsed else self._anywhere
            raw = _raw(parsed)
            shown = search.replaced(raw, _MARK)
            return parsed if shown is raw else _text(shown)
        if isinstance(parsed, list):
            return [self.value(item, written=written) for item in parsed]
        if isinstance(parsed, dict):
            return {key: self._field(key, inner, written=written) for key, inner in parsed.items()}
        return parsed

    def _field(self, key: str, value: Any, *, written: bool) -> Any:
        if key == _NAMES_A_SECRET or (not written and _is_named(key, value)):
            return value
        return self.value(value, written=written or key in _WRITTEN)

    def holds(self, text: str) -> bool:
        return _raw(text) in self._in_texts

    def uses(self, spec: Mapping[str, Any]) -> Iterator[Use]:
        """The fields for free text in a spec, as JSON, that hold a value."""
        for path, text in _texts(spec, "", written=False) if self._names else ():
            raw = _raw(text)
            for value in dict.fromkeys(_text(raw[begin:end]) for begin, end in self._in_texts.spans(raw)):
                yield Use(path, self._names[value][0], entire=text.strip() == value)

    def _line(self, line: bytes) -> bytes:
        if line not in self._forms:
            return line
        head = _DATA if line.startswith(_DATA) else b""
        try:
            return head + orjson.dumps(self.value(orjson.loads(line[len(head) :])))
        except orjson.JSONDecodeError:  # an unknown form: none of it is trusted
            return self._forms.replaced(line, _MARK)


def _is_named(key: str, value: Any) -> bool:
    if key in _PLACES:
        return isinstance(value, dict)
    names = value if isinstance(value, list) else [value]
    return key in _NAMES and all(isinstance(name, str) for name in names)


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogatepass")


def _forms(value: str) -> Iterator[bytes]:
    """The forms of the value in JSON."""
    for ensure_ascii in (True, False):
        yield json.dumps(value, ensure_ascii=ensure_ascii)[1:-1].encode(errors="surrogateescape")


def _texts(value: Any, path: str, *, written: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if written:
            yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key != _NAMES_A_SECRET:
                yield from _texts(inner, join_path(path, key), written=written or key in _WRITTEN)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, join_path(path, index), written=written)


NOTHING_REDACTED: Final = Redaction()


BEGIN: Final = "\ufdd0"
END: Final = "\ufdd1"
WITHHELD: Final = "(a line of its log, withheld)"
_BEGIN: Final = BEGIN.encode()
_END: Final = END.encode()
_CHARACTER: Final = rb'(?:[^"\\]|\\.)'  # of a JSON string
_QUOTED: Final = re.compile(_BEGIN + _CHARACTER + rb"*?(?:" + _END + rb'|(?="))', re.DOTALL)
# From a quotation mark to the end mark of a line, else past the text: each text is scanned once.
_CUT: Final = re.compile(rb'"(?:(' + _CHARACTER + rb"*?" + _END + rb")|" + _CHARACTER + rb"*+)", re.DOTALL)


def quote(message: str, line: str) -> str:
    """The message with its first occurrence of `line` marked, or all of it if the line does not occur."""
    message, line = plain(message), plain(line)
    if not line:
        return message
    before, quoted, after = message.partition(line)
    return f"{before}{BEGIN}{quoted}{END}{after}" if quoted else f"{BEGIN}{message}{END}"


def plain(text: str) -> str:
    """The text without marks."""
    return text.replace(BEGIN, "").replace(END, "")


def shown_json(body: bytes, *, logs: bool) -> bytes:
    """JSON in UTF-8 for a reader. `logs`: the reader may read logs, so only the marks are removed."""
    if _BEGIN not in body and _END not in body:
        return body
    if not logs:
        body = _QUOTED.sub(WITHHELD.encode(), body)
        body = _CUT.sub(_without_cut_line, body) if _END in body else body
    return body.replace(_BEGIN, b"").replace(_END, b"")


def _without_cut_line(text: re.Match[bytes]) -> bytes:
    return text[0] if text[1] is None else b'"' + WITHHELD.encode()
