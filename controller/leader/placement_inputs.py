"""What a placement pass reads: the inventory, the revisions of pending instances, and what their starts lack."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import structlog

from controller.decide.start_needs import secret_names, unmet_needs, why_no_preemption
from controller.domain.admission import Holdings, PendingRow
from controller.domain.placement import Ask, Need
from controller.domain.restart_delays import RestartSettings
from controller.engines.base import RefusedFlagError
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.store.access.secret_keys import SecretKeys
from controller.store.access.secrets import StoredSecret, read_states
from controller.store.core.database import Reader
from controller.store.placement.inventory import FROM_THE_START, InventoryChanges, read_changes
from controller.store.placement.pending import RevisionKey, read_revisions
from schemas.manifest.deployment import DeploymentSpec

log = structlog.get_logger(__name__)
_MAX_KEPT: Final = 100  # parsed specs of about 14 KiB each; those of the current pass are kept besides


class InventoryCache:
    """An `Inventory` and its `Holdings`, kept current by reading changes. For one reader at a time."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.holdings = Holdings()
        self.horizon = FROM_THE_START  # what older transactions wrote is known

    def copy(self) -> Self:
        """The same, for a reader that changes it. Not within a pass."""
        twin = type(self)()
        twin.inventory, twin.holdings, twin.horizon = self.inventory.copy(), self.holdings.copy(), self.horizon
        return twin

    async def refresh(self, connection: Any) -> None:
        """Takes over what changed. The connection must be in one REPEATABLE READ transaction."""
        self.take(await read_changes(connection, self.horizon))

    def take(self, changes: InventoryChanges) -> None:
        """Takes over what was read since the horizon."""
        if changes.device_uuids:
            for instance, holding in self.holdings.replace(changes.device_uuids, changes.claims):
                if holding is None:
                    self.inventory.remove_load([instance])
                else:
                    self.inventory.upsert_load([holding.load(instance)])
        self.inventory.upsert_workers(changes.workers)
        self.inventory.remove_workers(changes.deleted_workers)
        self.inventory.upsert_devices(changes.devices)
        self.inventory.remove_devices(changes.orphaned_devices)
        self.horizon = changes.horizon


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
            with suppress(RefusedFlagError):  # what an earlier version stored keeps running; an apply refuses it
                engine.validate(spec)
            if retired := spec.retired_args:
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


async def check_starts(
    connection: Reader,
    waiting: Sequence[PendingRow],
    spec_of: Callable[[PendingRow], DeploymentSpec],
    keys: SecretKeys,
    settings: RestartSettings,
) -> list[PendingRow]:
    """The same instances, with the reason at those that preempt nothing.

    Args:
        connection: in one REPEATABLE READ transaction.
        waiting: pending instances.
        spec_of: the spec of one of them; ValueError where this version cannot run it.
        keys: that open secrets.
        settings: the delays after refusals.
    """
    names: dict[str, dict[str, str]] = {}
    for row in waiting:
        if row.preempt:
            with suppress(ValueError):  # this version cannot run it: it is not placed either
                names[row.id] = secret_names(spec_of(row))
    secrets = await _read_secrets(connection, names.values(), keys)
    checked = []
    for row in waiting:
        why = ""
        if row.preempt:
            needs = unmet_needs(row.deployment, names.get(row.id, {}), secrets)
            why = why_no_preemption(needs, row.refused, row.failures, settings)
        checked.append(replace(row, no_preemption=why) if why else row)
    return checked


async def check_specs(connection: Reader, specs: Mapping[str, DeploymentSpec], keys: SecretKeys) -> dict[str, str]:
    """Why new instances of these deployments (by name) would preempt nothing, where they may and would not."""
    names = {name: secret_names(spec) for name, spec in specs.items() if spec.preempt}
    secrets = await _read_secrets(connection, names.values(), keys)
    needs = {name: unmet_needs(name, wanted, secrets) for name, wanted in names.items()}
    return {name: unmet[0].message for name, unmet in needs.items() if unmet}


async def _read_secrets(
    connection: Reader, names: Iterable[Mapping[str, str]], keys: SecretKeys
) -> Mapping[str, StoredSecret]:
    wanted = {name for some in names for name in some.values()}
    return await read_states(connection, wanted, keys) if wanted else {}
