"""The endpoints of models: every running instance that has a port. Read again and again, and parsed only once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.engines.base import SERVES_AT_ONCE, EngineProcess, Launch
from controller.engines.registry import engine_for
from controller.live.proxy_keys import NO_PROXY_KEYS
from controller.runtime.database import DATABASE_ERRORS, is_disk_full
from controller.runtime.tasks import TimeSlice
from controller.store.access.proxy_secrets import StoredProxySecret
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database, Reader
from controller.store.deployments.serving import (
    Model,
    RevisionKey,
    RolloutRoute,
    RunningInstance,
    Serving,
    Stopped,
    Trouble,
    read_serving,
    read_specs,
    read_started_models,
)
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.serving import ServingLimits

__all__ = [
    "DATABASE_ERRORS", "Database", "Endpoint", "EndpointReader", "Model", "RolloutRoute", "Stopped", "Trouble",
    "is_disk_full",
]  # fmt: skip

_TAKES_ONE_NAME: Final = ("transformers", "serve")  # with the commit, where the start was given one
_READ_AT_ONCE: Final = 100  # specs; parsing them holds the loop
_Run = tuple[RevisionKey, str]  # with the engine that placement chose


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
    epoch: int = 0  # of the instance's start


class EndpointReader:
    """Reads the endpoints, and keeps what it parsed for the next read. What the last read did not need is forgotten."""

    def __init__(self, keys: SecretKeys = NO_PROXY_KEYS.keys) -> None:
        # workers of which the last read found the secret sealed under a key that is not here. Their replicas are left
        # out
        self.closed: frozenset[str] = frozenset()
        self.opens_none = False  # it could open no sealed secret, though there were some
        self._keys = keys
        self._secrets: Mapping[StoredProxySecret, str | None] = {}
        self._limits: Mapping[str, ServingLimits] = {}
        self._processes: Mapping[_Run, EngineProcess | None] = {}

    async def read(self, connection: Reader) -> tuple[Serving, list[Endpoint]]:
        """The live deployments, and the endpoints of their running instances."""
        serving = await read_serving(connection, self._limits)
        self._limits = serving.limits
        self._processes = await self._read_processes(
            connection, {(one.revision, one.engine) for one in serving.instances}
        )
        found = [
            (one, process)
            for one in serving.instances
            if (process := self._processes[one.revision, one.engine]) is not None and process.needs_port
        ]
        by_name = [one.instance for one, process in found if tuple(process.argv[:2]) == _TAKES_ONE_NAME]
        started = await read_started_models(connection, by_name) if by_name else {}
        await self._open({one.secret for one, _ in found})
        reached = [
            (one, process, secret) for one, process in found if (secret := self._secrets[one.secret]) is not None
        ]
        return serving, [_endpoint(one, process, started.get(one.instance), secret) for one, process, secret in reached]

    async def _open(self, secrets: Collection[StoredProxySecret]) -> None:
        await self._keys.learn({one.key_id for one in secrets})
        known = {one: secret for one, secret in self._secrets.items() if secret is not None}
        self._secrets = {one: known[one] if one in known else one.opened(self._keys) for one in secrets}
        sealed = {one for one in secrets if one.sealed is not None}
        closed = {one for one, secret in self._secrets.items() if secret is None}
        self.closed, self.opens_none = frozenset(one.worker_id for one in closed), bool(closed) and closed == sealed

    async def _read_processes(self, connection: Reader, runs: Collection[_Run]) -> dict[_Run, EngineProcess | None]:
        """What each revision runs by the engine that placement chose; None: this version cannot tell."""
        turn = TimeSlice()
        found = {run: self._processes[run] for run in runs if run in self._processes}
        new = [run for run in runs if run not in found]
        for part in (new[start : start + _READ_AT_ONCE] for start in range(0, len(new), _READ_AT_ONCE)):
            specs = await read_specs(connection, {revision for revision, _ in part})
            for run in part:
                found[run] = _process(specs.get(run[0]), run[1])
                await turn.yield_if_over()
        return found


def _process(spec: DeploymentSpec | None, engine: str) -> EngineProcess | None:
    try:
        return None if spec is None else engine_for(spec).chosen(engine).process(spec, Launch())
    except ValueError:  # written by another version, as before a downgrade; the others are served all the same
        return None


def _endpoint(one: RunningInstance, process: EngineProcess, started: str | None, secret: str) -> Endpoint:
    """`started`: the model with which its server was started, as it takes requests for that name alone."""
    limits = one.limits
    return Endpoint(
        model=one.deployment,
        instance=one.instance,
        epoch=one.epoch,
        address=one.address,
        secret=secret,
        certificate=one.certificate,
        limits=limits,
        request_model=started or process.request_model,
        max_in_flight=process.serves_at_once if limits.max_in_flight == "auto" else limits.max_in_flight,
        revision=str(one.revision.generation),
        adapters=process.adapters,
    )
