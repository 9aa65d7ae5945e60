"""What placement knows of each revision: its spec, its need, and the ask that all of its instances share."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from controller.domain.pending import PendingRow
from controller.domain.placement import Ask, Need
from controller.engines.base import RefusedFlagError
from controller.engines.registry import engine_for
from controller.engines.simulated import retired_args
from controller.scheduling.estimate import asks_for
from controller.store.placement.pending import RevisionKey, read_revisions
from schemas.manifest.deployment import DeploymentSpec

log = structlog.get_logger(__name__)
_MAX_KEPT: Final = 100  # parsed specs of about 14 KiB each; those of the current pass are kept besides


@dataclass(frozen=True, slots=True)
class RevisionAsk:
    """A revision. `ask` is that of each of its instances, but for the instance's own name.

    `commits`: of its models on the hub, as known so far.
    """

    spec: DeploymentSpec
    need: Need
    ask: Ask
    commits: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_get_commits(self) -> bool:
        """Whether a start may yet show a commit."""
        models = (self.spec.model or "", *self.spec.serving.adapters.values())
        return not self.commits and any(model.startswith("hf:") for model in models)


class RevisionAsks:
    """A cache by revision, the least recently used forgotten first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[RevisionKey, RevisionAsk | ValueError] = OrderedDict()

    async def refresh(self, connection: Any, waiting: Sequence[PendingRow]) -> None:
        """Reads the revisions of these instances that are not kept."""
        wanted = {(row.deployment_uid, row.revision) for row in waiting}
        missing = wanted - self._kept.keys()
        missing |= {key for key in wanted - missing if self._may_get_commits(key)}
        if missing:
            for key, stored in (await read_revisions(connection, sorted(missing))).items():
                try:
                    self.put(key, *stored.parse(), stored.commits)
                except ValueError as error:
                    self._kept[key] = error
        for row in waiting:
            self._kept.move_to_end((row.deployment_uid, row.revision))
        while len(self._kept) > max(_MAX_KEPT, len(waiting)):
            self._kept.popitem(last=False)

    def put(self, key: RevisionKey, spec: DeploymentSpec, need: Need, commits: Mapping[str, str] | None = None) -> None:
        """Keeps a revision, or the reason why this version cannot run it."""
        try:
            engine = engine_for(spec)
            with suppress(RefusedFlagError):  # what an earlier version stored goes on running; an apply refuses it
                engine.validate(spec)
            if retired := retired_args(spec):
                log.warning("args have no effect", deployment=key[0], revision=key[1], args=retired)
            ask = asks_for(spec, need, engine, instance="", deployment_uid=key[0])
            self._kept[key] = RevisionAsk(spec, need, ask, commits or {})
        except ValueError as error:
            self._kept[key] = error

    def _may_get_commits(self, key: RevisionKey) -> bool:
        found = self._kept[key]
        return isinstance(found, RevisionAsk) and found.may_get_commits

    def of(self, row: PendingRow) -> RevisionAsk:
        """The revision of a pending instance.

        Raises:
            ValueError: this version cannot run it.
        """
        found = self._kept[row.deployment_uid, row.revision]
        if isinstance(found, ValueError):
            raise found
        return found
