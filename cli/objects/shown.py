"""Objects that are shown before they are deleted. An object that has changed since is not deleted."""

import sys
from typing import NamedTuple, Self

from cli.errors import CliError, NotFoundError, RefusedError
from cli.objects.kind import Kind
from cli.objects.selection import labels_of
from cli.objects.selectors import Selector
from cli.transport.client import Api
from cli.transport.paths import Json, path_of
from schemas.printing import block


class Shown(NamedTuple):
    """An object as it was shown. Another object may take its name, but not its uid."""

    kind: Kind
    name: str
    uid: str
    generation: int

    @classmethod
    def of(cls, kind: Kind, raw: Json) -> Self:
        return cls(kind, str(raw["name"]), str(raw["uid"]), int(raw.get("generation", 0)))


def delete_shown(api: Api, shown: Shown, selector: Selector | None, *, confirm_dead: str | None = None) -> bool:
    """Deletes the object; returns False and prints a message where it is gone already.

    Raises:
        CliError: the object has changed, or lost the labels of the selector; or the API refuses.
    """
    kind, name = shown.kind, shown.name
    raw = api.find(path_of(kind.plural, name))
    if raw is None or raw.get("deleted_at") is not None:
        return _is_gone(shown)
    labelled = selector is None or selector.matches(labels_of(kind, raw))
    if Shown.of(kind, raw) != shown or not labelled:
        raise _changed(shown)
    try:
        # not 0, which no object has: a kind without generations is not checked
        generation = shown.generation or None
        api.delete(path_of(kind.plural, name), generation=generation, hints=False, confirm_dead=confirm_dead)
    except NotFoundError:
        return _is_gone(shown)
    except RefusedError as error:
        raise _changed(shown) if error.code == "generation_conflict" else error from error
    return True


def _is_gone(shown: Shown) -> bool:
    print(block(f"{shown.kind.singular}/{shown.name} is gone already"), file=sys.stderr, flush=True)
    return False


def _changed(shown: Shown) -> CliError:
    return CliError(f"{shown.kind.singular} {shown.name!r} was changed meanwhile; run the command again")
