"""The endpoints of models: every running instance that has a port."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.engines.base import SERVES_AT_ONCE, EngineProcess, Launch
from controller.engines.registry import engine_for
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database, Reader
from controller.store.deployments.serving import (
    Model,
    RevisionKey,
    RolloutRoute,
    Serving,
    Stopped,
    Trouble,
    read_serving,
)
from schemas.manifest.serving import ServingLimits

__all__ = ["DATABASE_ERRORS", "Database", "Endpoint", "Model", "RolloutRoute", "Stopped", "Trouble", "read_endpoints"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running instance as the gateway reaches it."""

    model: str  # the deployment's name
    instance: str
    address: str  # HOST:PORT of the worker's proxy
    secret: str
    limits: ServingLimits = field(default_factory=ServingLimits)
    request_model: str | None = None  # what its server expects as `model`; None: any name
    max_in_flight: int = SERVES_AT_ONCE  # requests at this instance, from all gateways
    revision: str = ""  # its generation
    adapters: Mapping[str, str] = field(default_factory=dict)  # of its revision, each with the `model` that asks for it
    certificate: str = ""  # SHA-256 of the proxy's, in hexadecimal digits; empty: it speaks no TLS


async def read_endpoints(connection: Reader) -> tuple[Serving, list[Endpoint]]:
    """The live deployments, and the endpoints of their running instances."""
    serving = await read_serving(connection)
    processes = _processes(serving)
    return serving, [
        Endpoint(
            model=one.deployment,
            instance=one.instance,
            address=one.address,
            secret=one.secret,
            certificate=one.certificate,
            limits=one.limits,
            request_model=process.request_model,
            max_in_flight=_max_in_flight(one.limits, process),
            revision=str(one.revision[1]),
            adapters=process.adapters,
        )
        for one in serving.instances
        if (process := processes.get((one.revision, one.engine))) is not None and process.needs_port
    ]


def _max_in_flight(limits: ServingLimits, process: EngineProcess) -> int:
    return process.serves_at_once if limits.max_in_flight == "auto" else limits.max_in_flight


def _processes(serving: Serving) -> dict[tuple[RevisionKey, str], EngineProcess]:
    """What each revision runs by the engine that placement chose."""
    found: dict[tuple[RevisionKey, str], EngineProcess] = {}
    for revision, engine in {(one.revision, one.engine) for one in serving.instances}:
        spec = serving.specs.get(revision)
        if spec is None:
            continue
        try:
            found[revision, engine] = engine_for(spec).chosen(engine).process(spec, Launch())
        except ValueError:  # written by another version, as before a downgrade; the others are served all the same
            continue
    return found
