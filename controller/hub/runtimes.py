"""What a worker can run besides processes of its host: a condition where its containers, or their GPUs, do not work."""

from controller.store.core.database import Connection
from controller.store.workers.conditions import clear_condition, set_condition
from schemas.placement_reasons import Reason
from schemas.wire import RUNTIME_DOCKER, Inventory, RuntimeFacts
from schemas.worker_conditions import CONTAINERS


async def record_runtimes(connection: Connection, worker_id: str, inventory: Inventory) -> None:
    """Sets or clears the condition, in the transaction that writes the host's facts."""
    problem = container_problem(inventory)
    if problem:
        await set_condition(connection, worker_id, CONTAINERS, Reason.RUNTIME_UNSUPPORTED, problem)
    else:
        await clear_condition(connection, worker_id, CONTAINERS)


def container_problem(inventory: Inventory) -> str:
    """Why the worker cannot run every container; empty: it can, or its agent does not speak of containers."""
    docker = docker_of(inventory.host.runtimes)
    if docker is None:
        return ""
    if not docker.usable:
        return docker.reason or "its Docker engine cannot be used"
    if inventory.gpus and not docker.gpus:
        return docker.reason or "containers get no GPUs"
    return ""


def docker_of(runtimes: tuple[RuntimeFacts, ...]) -> RuntimeFacts | None:
    """The Docker engine among these runtimes; None: there is none."""
    return next((runtime for runtime in runtimes if runtime.name == RUNTIME_DOCKER), None)
