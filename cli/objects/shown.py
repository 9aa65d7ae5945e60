"""Objects that were shown before they are deleted: no other one is, and none that has changed since."""

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
    """An object as it was shown.

    Attributes:
        kind: of the object.
        name: its name, which another one may take.
        uid: its uid, which no other one takes.
        generation: how often its manifest was changed.
    """

    kind: Kind
    name: str
    uid: str
    generation: int

    @classmethod
    def of(cls, kind: Kind, raw: Json) -> Self:
        """An object that the API sent."""
        return cls(kind, str(raw["name"]), str(raw["uid"]), int(raw.get("generation", 0)))


def delete_shown(api: Api, shown: Shown, selector: Selector | None, *, confirm_dead: str | None = None) -> bool:
    """Deletes it; False, with a message: it is gone already.

    Raises:
        CliError: it has changed since, or lost the labels of the selector; or the API refuses.
    """
    kind, name = shown.kind, shown.name
    raw = api.find(path_of(kind.plural, name))
    if raw is None or raw.get("deleted_at") is not None:
        return _is_gone(shown)
    labelled = selector is None or selector.matches(labels_of(kind, raw))
    if Shown.of(kind, raw) != shown or not labelled:
        raise _changed(shown)
    try:  # what has no generation is not checked by the API: a 0 fits nothing there
        api.delete(path_of(kind.plural, name), generation=shown.generation or None, confirm_dead=confirm_dead)
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
