"""Names like the one that does not exist, for the messages of errors. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cli.transport.paths import API

_LIKE: Final = 0.6  # of 1: `chta` and `chat` have 0.75
_MOST: Final = 3


def near(word: str, names: Iterable[str]) -> list[str]:
    """The names that differ little from the word, the most similar first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only errors need it

    by_lower = {name.lower(): name for name in sorted(set(names), reverse=True)}
    return [by_lower[lower] for lower in get_close_matches(word.lower(), by_lower, _MOST, _LIKE)]


def did_you_mean(names: Sequence[str]) -> str:
    """The end of an error's message: `; did you mean chat or chat-2?`; empty without names."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


def named_in(path: str) -> tuple[str, str] | None:
    """The list and the name in a path such as `/api/v1/deployments/chat/scale`; None for a path without a name."""
    from urllib.parse import unquote  # noqa: PLC0415 - only errors need it

    parts = path.removeprefix(f"{API}/").partition("?")[0].split("/")
    return (parts[0], unquote(parts[1])) if path.startswith(f"{API}/") and len(parts) > 1 else None


def like(name: str, raws: Sequence[Mapping[str, Any]]) -> list[str]:
    """The objects of a list that a wrong name may mean, as verbs take them; empty where an object has the name.

    Keys and tokens are taken by their id: one whose name it is, is meant.
    """
    names = [str(raw.get("id", raw.get("name", ""))) for raw in raws]
    if name in names:
        return []
    called = [str(raw["id"]) for raw in raws if "id" in raw and raw.get("name") == name]
    return called[:_MOST] or near(name, names)
