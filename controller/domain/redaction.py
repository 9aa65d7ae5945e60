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

import orjson

from controller.domain.sought_values import SoughtValues
from schemas.manifest.problems import join_path
from schemas.redaction import LEAST_BYTES, MARK

_LIKE_A_NAME: Final = re.compile(r"[a-z0-9]+([-_.:/][a-z0-9]+)*|[A-Za-z]+")
# What users write, in specs and in their differences.
_WRITTEN: Final = frozenset({"env", "args", "command", "labels", "url", "old", "new", "old_spec", "new_spec"})
_NAMES_A_SECRET: Final = "secret"  # noqa: S105 - the key of a reference
# Names and places of other things, which clients check; a token is none.
_NAMES: Final = frozenset({"model", "image", "aliases", "workers", "gpus"})
_PLACES: Final = frozenset({"adapters", "volumes"})
_MARK: Final = MARK.encode()
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
        self._anywhere = SoughtValues(_raw(value) for value in names if not _LIKE_A_NAME.fullmatch(value))
        self._in_texts = SoughtValues(map(_raw, names))
        self._forms = SoughtValues(form for value in names for form in _forms(value))

    def __bool__(self) -> bool:
        return bool(self._names)

    def shown(self, body: bytes) -> bytes:
        """JSON, or server-sent events, without the values. The same object where it holds none."""
        if not self._forms or body not in self._forms:
            return body
        try:
            return orjson.dumps(self.value(orjson.loads(body)))
        except orjson.JSONDecodeError:
            return b"\n".join(map(self._line, body.split(b"\n")))

    def value(self, parsed: Any, *, written: bool = False) -> Any:
        """A value as JSON has it. `written`: it is what a user has written."""
        if isinstance(parsed, str):
            sought = self._in_texts if written or " " in parsed else self._anywhere
            held = _raw(parsed)
            shown = sought.replaced(held, _MARK)
            return parsed if shown is held else _text(shown)
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
        return _raw(text) in self._in_texts

    def uses(self, spec: Mapping[str, Any]) -> Iterator[Use]:
        """The fields of a spec, as JSON, that hold a value where users write texts of their own."""
        for path, text in _texts(spec, "", written=False) if self._names else ():
            for value in dict.fromkeys(self._found(text)):
                yield Use(path, self._names[value][0], whole=text.strip() == value)

    def _found(self, text: str) -> Iterator[str]:
        held = _raw(text)
        return (_text(held[begin:end]) for begin, end in self._in_texts.spans(held))

    def _line(self, line: bytes) -> bytes:
        if line not in self._forms:
            return line
        head = _DATA if line.startswith(_DATA) else b""
        try:
            return head + orjson.dumps(self.value(orjson.loads(line[len(head) :])))
        except orjson.JSONDecodeError:  # a form that is not known here: nothing of it is trusted
            return self._forms.replaced(line, _MARK)


def _is_named(key: str, value: Any) -> bool:
    if key in _PLACES:
        return isinstance(value, dict)
    names = value if isinstance(value, list) else [value]
    return key in _NAMES and all(isinstance(one, str) for one in names)


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogatepass")


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
