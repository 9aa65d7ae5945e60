"""The followed objects, and their changes. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cli.objects.kind import Kind
from cli.objects.kinds import DEPLOYMENTS, INSTANCES, POLICIES, WORKERS
from cli.objects.selection import labels_of
from cli.objects.selectors import Selector
from cli.transport.paths import Json

FOLLOWED = (DEPLOYMENTS, INSTANCES, WORKERS, POLICIES)
_LIST_OF = {"Deployment": DEPLOYMENTS, "Instance": INSTANCES, "Worker": WORKERS, "UtilizationPolicy": POLICIES}


class Change(NamedTuple):
    """An object that is new or has changed; or is `gone`, as it was last observed."""

    raw: Json
    before: Json | None
    gone: bool = False


@dataclass(slots=True)
class Board:
    """The objects of a watch, by list and uid. Only those of `kind` that pass the filters are shown."""

    kind: Kind
    names: frozenset[str] = frozenset()  # empty: any name
    selector: Selector | None = None
    deployment: str | None = None  # the owner of instances
    objects: dict[str, dict[str, Json]] = field(default_factory=dict)

    def take(self, events: Iterable[tuple[str, Json]]) -> list[Change]:
        """Applies events of the watch; returns the changes of shown objects, each object once."""
        before = {raw["uid"]: raw for raw in self.shown()}
        for kind, raw in events:
            if kind == "snapshot":
                self.objects = {of: {held["uid"]: held for held in raws} for of, raws in raw.items()}
            elif (of := _LIST_OF.get(str(raw.get("kind")))) is not None:
                held = self.objects.setdefault(of.plural, {})
                if kind == "gone":
                    held.pop(raw["uid"], None)
                else:
                    held[raw["uid"]] = raw
        after = {raw["uid"]: raw for raw in self.shown()}
        gone = [Change(raw, raw, gone=True) for uid, raw in before.items() if uid not in after]
        return gone + [Change(raw, before.get(uid)) for uid, raw in after.items() if before.get(uid) != raw]

    def shown(self) -> list[Json]:
        """The shown objects, by name."""
        return self._picked(self.kind, self.objects.get(self.kind.plural, {}).values(), self._is_requested)

    def deployments(self) -> list[Json]:
        """The deployments with the labels, by name."""
        held = self.objects.get(DEPLOYMENTS.plural, {}).values()
        return self._picked(DEPLOYMENTS, held, lambda raw: self.deployment in (None, raw["name"]))

    def _is_requested(self, raw: Json) -> bool:
        if self.names and raw["name"] not in self.names:
            return False
        return self.deployment is None or raw["spec"]["deployment"] == self.deployment

    def _picked(self, kind: Kind, raws: Iterable[Json], passes: Callable[[Json], bool]) -> list[Json]:
        return sorted((raw for raw in raws if passes(raw) and self._has_labels(kind, raw)), key=_by_name)

    def _has_labels(self, kind: Kind, raw: Json) -> bool:
        if self.selector is None:
            return True
        if kind is INSTANCES:
            owner = self.objects.get(DEPLOYMENTS.plural, {}).get(raw["spec"]["deployment_uid"])
            return self.selector.matches({} if owner is None else labels_of(DEPLOYMENTS, owner))
        return self.selector.matches(labels_of(kind, raw))


def _by_name(raw: Json) -> tuple[str, str]:
    return str(raw["name"]), str(raw["uid"])


def lists_of(kind: Kind, selector: Selector | None, *, notes: bool) -> Sequence[str]:
    """The lists to watch. Instances have the labels of their deployments, and the notes are about deployments."""
    both = kind is INSTANCES and (notes or selector is not None)
    return (kind.plural, DEPLOYMENTS.plural) if both else (kind.plural,)
