"""The words that may come next in a command line: kinds, or names of objects. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

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
