"""Shared by guarded writes: a step with the facts it was decided on, and the row count that reveals a lost guard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.domain.effects import DeploymentEffects, Restart
from controller.domain.instances import DeploymentFacts
from controller.store.core.errors import LostGuardError


@dataclass(frozen=True, slots=True)
class DeploymentStep:
    """Effects with the facts they were decided on, the start payloads of restarts by instance, and new names."""

    facts: DeploymentFacts
    effects: DeploymentEffects
    payloads: Mapping[str, dict[str, Any]]
    names: tuple[str, ...] = ()  # of the instances that it creates, in order


async def expect_rows(connection: Any, query: str, count: int, *args: Any) -> None:
    """Runs a write that returns its rows; raises LostGuardError unless there are `count` of them."""
    rows = await connection.fetch(query, *args)
    if len(rows) != count:
        raise LostGuardError(query.split("\n", 1)[0].strip())


def worker_of(facts: DeploymentFacts, restart: Restart) -> str | None:
    """The worker of a restart in place."""
    return next((i.host_of(0) for i in facts.instances if i.id == restart.instance), None)
