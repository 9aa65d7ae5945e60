"""Answers a shell that requests live names: within a second, and without messages on errors."""

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from cli.completion.shells import answer, typed

CONTEXTS: Final = "contexts"
GPUS: Final = "gpus"
PLURALS: Final = {
    "deployment": "deployments",
    "instance": "instances",
    "worker": "workers",
    "gpu": GPUS,
    "policy": "policies",
    "event": "events",
    "key": "keys",
    "token": "tokens",
}
_MANY: Final = 1000
_DESCRIBED: Final = ("deployment", "instance", "worker", "gpu", "policy")  # the kinds of `describe`, `events --for`
GLOBAL: Final = {"--url": (), "--api-key": (), "--context": (CONTEXTS,)}  # options with a value before the verb
DEADLINE_S: Final = 1.0
_MOST: Final = 1000  # names of one list: the longest page of the API
_SAFE: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")  # characters without a meaning for shells and terminals


class Verb(NamedTuple):
    """The arguments of a verb."""

    names: tuple[str, ...] = ()  # lists of which it takes names
    most: int = 1  # number of names
    kinds: tuple[str, ...] = ()  # words for kinds, of which the first argument may be one
    flags: frozenset[str] = frozenset({"--help", "-h"})  # options without a value
    values: Mapping[str, tuple[str, ...]] = {}  # options with a name as their value, and the lists of those names
    pairs: frozenset[str] = frozenset()  # options with two values


class Wanted(NamedTuple):
    """The words to offer."""

    words: tuple[str, ...] = ()  # fixed words
    lists: tuple[str, ...] = ()  # lists of which the names are offered
    worker: str = ""  # offer only its GPUs; empty: those of all workers
    before: str = ""  # precedes each name, such as `worker/`


def _flags(text: str) -> frozenset[str]:
    return frozenset({"--help", "-h", *text.split()})


_DEPLOYMENT: Final = Verb(("deployments",))
_DEPLOYMENTS: Final = Verb(("deployments",), _MANY)
_CONTEXT: Final = Verb((CONTEXTS,))
_OF_WORKER: Final = Verb(("workers",))
_WORKERS: Final = Verb(("workers",), _MANY, values={"--gpu": (GPUS,)})
VERBS: Final[Mapping[str, Verb]] = {
    "get": Verb(most=_MANY, kinds=tuple(PLURALS.values()), flags=_flags("--watch -w")),
    "describe": Verb(("deployments", "instances", "workers", "policies"), kinds=_DESCRIBED),
    "delete": Verb(
        ("deployments",), _MANY, ("deployment", "policy", "worker"), _flags("--wait --confirm-dead --yes -y")
    ),
    "logs": Verb(("deployments", "instances"), flags=_flags("--follow -f --previous --timestamps --all")),
    "models": Verb(("deployments",), _MANY),
    "ps": Verb(("deployments",), flags=_flags("--watch -w")),
    "stop": _DEPLOYMENTS,
    "start": _DEPLOYMENTS,
    "restart": Verb(("deployments",), flags=_flags("--pull"), values={"--instance": ("instances",)}),
    "wait": _DEPLOYMENTS,
    "scale": _DEPLOYMENT,
    "wake": _DEPLOYMENT,
    "rollout status": Verb(("deployments",), flags=_flags("--watch --no-watch")),
    "rollout pause": _DEPLOYMENT,
    "rollout resume": _DEPLOYMENT,
    "rollout undo": _DEPLOYMENT,
    "rollout history": Verb(("deployments",), pairs=frozenset({"--diff"})),
    "label worker": _OF_WORKER,
    "cordon": _WORKERS,
    "uncordon": _WORKERS,
    "drain": Verb(("workers",), _MANY, flags=_flags("--now --restart-tasks --keep-tasks --wait")),
    "top": Verb(flags=_flags("--once -n"), values={"--worker": ("workers",)}),
    "events": Verb(flags=_flags("--watch -w"), values={"--for": _DESCRIBED}),
    "cache list": _OF_WORKER,
    "cache prune": _OF_WORKER,
    "context use": Verb((CONTEXTS,), flags=_flags("--none")),
    "context show": _CONTEXT,
    "context delete": _CONTEXT,
    "gateway forget": Verb(("gateways",)),
    "key update": Verb(("keys",)),
    "key revoke": Verb(("keys",)),
    "key rotate": Verb(("keys",)),
    "join-token revoke": Verb(("tokens",)),
}


def complete(environ: Mapping[str, str]) -> int | None:
    """Prints the words that fit; returns the exit code. None: typer shall answer."""
    try:
        request = typed(environ)
        line = None if request is None else offered(request.words, request.incomplete)
    except (KeyError, ValueError):
        return None
    if request is None or line is None or line.wanted is None:
        return None
    words = [word for word in line.wanted.words if word.startswith(request.incomplete)]
    late = threading.Timer(DEADLINE_S, _end, answer(environ, request, words))  # name servers keep no deadline of ours
    late.daemon = True
    late.start()
    with suppress(Exception):  # a message would appear within the line that the user types
        words += _live_names(line.wanted, line.options, request.incomplete, environ)
    late.cancel()
    text, code = answer(environ, request, words)
    _print(text)
    return code


def _print(text: str) -> None:
    if text:
        print(text, flush=True)


def _end(text: str, code: int) -> None:
    """Prints, and ends the process although another thread still waits."""
    try:
        _print(text)
    finally:
        os._exit(code)


def _live_names(wanted: Wanted, options: Mapping[str, str], incomplete: str, environ: Mapping[str, str]) -> list[str]:
    names = [name for of in wanted.lists for name in _names(of, wanted.worker, options, environ)]
    words = {wanted.before + name for name in names if _SAFE.fullmatch(name)}
    return sorted(word for word in words if word.startswith(incomplete))


def _names(of: str, worker: str, options: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    if of == CONTEXTS:
        from cli.transport.contexts import contexts_file, read_contexts  # noqa: PLC0415 - completion is quick

        return list(read_contexts(contexts_file(environ)).by_name)
    return [name for raw in _read(of, worker, options, environ) for name in _names_of(of, raw, worker)]


def _names_of(of: str, raw: Mapping[str, Any], worker: str) -> Iterator[str]:
    """A GPU has two: `worker:index` (the index alone after its worker), and the first block of its UUID."""
    if of != GPUS:
        yield str(raw["id"] if of in ("keys", "tokens") else raw["name"])
        return
    from cli.text.formatting import short_gpu  # noqa: PLC0415 - completion is quick

    status = raw["status"]
    if status.get("parent") is None and status.get("present", True):
        yield str(status["index"]) if worker else f"{status['worker']}:{status['index']}"
    yield short_gpu(str(raw["name"]))


def _read(of: str, worker: str, options: Mapping[str, str], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    from cli.transport.connection import find_connection  # noqa: PLC0415 - as above
    from cli.transport.paths import path_of  # noqa: PLC0415 - as above
    from cli.transport.servers import Request, Servers  # noqa: PLC0415 - as above

    connection = find_connection(
        options.get("--url"), options.get("--api-key"), context=options.get("--context"), environ=environ
    )
    query = urlencode({"limit": _MOST, **({"worker": worker} if worker else {})})
    with closing(Servers.of(connection)) as servers:
        answer = servers.exchange(Request("GET", f"{path_of(of)}?{query}"))
    items: list[dict[str, Any]] = json.loads(answer.content).get("items", [])  # not by msgspec, which imports for 10 ms
    return items


class Line(NamedTuple):
    """A command line up to the incomplete word. `options`: those with a value before the verb. None: typer offers."""

    options: Mapping[str, str]
    wanted: Wanted | None


def offered(words: Sequence[str], incomplete: str) -> Line:
    """The offer for `incomplete` after these words, which follow `gpuward`."""
    options, rest = _without_options(words)
    if rest is None:
        return Line(options, Wanted(lists=GLOBAL[words[-1]]) if GLOBAL.get(words[-1]) else None)
    name, equals, _ = incomplete.partition("=")
    if not rest and equals and GLOBAL.get(name):
        return Line(options, Wanted(lists=GLOBAL[name], before=f"{name}="))
    for length in (2, 1):
        verb = VERBS.get(" ".join(rest[:length]))
        if verb is not None and len(rest) >= length and not incomplete.startswith("-"):
            return Line(options, _of_verb(verb, rest[length:], incomplete))
    return Line(options, None)


def _without_options(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str] | None]:
    """The options before the verb, and the rest; None: the incomplete word is the value of the last option."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name in GLOBAL and not equals:
            if at + 1 == len(words):
                return options, None
            at += 1
            value = words[at]
        if name in GLOBAL:
            options[name] = value
        at += 1
    return options, words[at:]


def _of_verb(verb: Verb, words: Sequence[str], incomplete: str) -> Wanted | None:
    given: list[str] = []
    option, left = "", 0  # an option, and the number of its values that follow
    for word in words:
        if left:
            left -= 1
        elif word.startswith("-") and word not in verb.flags and "=" not in word:
            option, left = word, 2 if word in verb.pairs else 1
        elif not word.startswith("-"):
            given.append(word)
    if left:
        return _of_value(verb.values.get(option, ()), given, incomplete)
    kind = _kind_of(given[0]) if given and verb.kinds else None
    lists = (kind,) if kind else verb.names
    named = len(given) - (1 if kind else 0)
    if named >= verb.most:
        return None
    prefix, slash, _ = incomplete.partition("/")
    if slash:
        of_prefix = _kind_of(prefix)
        fits = of_prefix is not None and of_prefix in (*lists, *map(_kind_of, verb.kinds if not given else ()))
        return Wanted(lists=(str(of_prefix),), before=f"{prefix}/") if fits else None
    return Wanted(verb.kinds if not given else (), tuple(name for name in lists if name))


def _of_value(lists: tuple[str, ...], given: Sequence[str], incomplete: str) -> Wanted | None:
    if lists is _DESCRIBED:
        prefix, slash, _ = incomplete.partition("/")
        if slash:
            return Wanted(lists=(PLURALS[prefix],), before=f"{prefix}/") if prefix in _DESCRIBED else None
        return Wanted(tuple(f"{kind}/" for kind in _DESCRIBED))
    return Wanted(lists=lists, worker=given[0] if given and lists == (GPUS,) else "") if lists else None


def _kind_of(word: str) -> str | None:
    """The list of a kind, from its singular or plural; else None."""
    lower = word.lower()
    return lower if lower in PLURALS.values() else PLURALS.get(lower)
