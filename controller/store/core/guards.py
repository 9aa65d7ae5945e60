"""What guarded writes share: effects with the facts they rest on, and the row count that detects a lost guard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from controller.domain.effects import DeploymentEffects, Restart
from controller.domain.instances import DeploymentFacts
from controller.store.core.errors import LostGuardError


@dataclass(frozen=True, slots=True)
class DeploymentStep:
    """Effects of a step, the facts they rest on, start payloads of restarts by instance, and names of new instances."""

    facts: DeploymentFacts
    effects: DeploymentEffects
    payloads: Mapping[str, dict[str, Any]]
    names: tuple[str, ...] = ()  # of the instances that it creates, in order


async def expect_rows(connection: Any, query: str, count: int, *args: Any) -> Sequence[Any]:
    """Runs a write that returns its rows, and returns them; raises LostGuardError unless there are `count` of them."""
    rows = await connection.fetch(query, *args)
    if len(rows) != count:
        raise LostGuardError(query.split("\n", 1)[0].strip())
    return cast("Sequence[Any]", rows)


def worker_of(facts: DeploymentFacts, restart: Restart) -> str | None:
    """The worker of a restart in place."""
    instance = facts.by_id.get(restart.instance)
    return None if instance is None else instance.host_of(0)
