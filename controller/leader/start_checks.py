"""Which pending instances preempt nothing, since their start would fail: by their secrets, and refusals before."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from controller.decide.start_needs import secret_names, unmet_needs, why_no_preemption
from controller.domain.admission import PendingRow
from controller.domain.restart_delays import RestartSettings
from controller.store.access.secret_keys import SecretKeys
from controller.store.access.secrets import StoredSecret, read_states
from controller.store.core.database import Reader
from schemas.manifest.deployment import DeploymentSpec


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
        spec_of: raises ValueError if this version cannot run the spec.
        keys: of secrets.
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
    wanted = {name for of_instance in names for name in of_instance.values()}
    return await read_states(connection, wanted, keys) if wanted else {}
