"""The endpoints of models: every running instance that has a port. They are read often, and parsed only once."""

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

_TAKES_ONE_NAME: Final = ("transformers", "serve")  # with the commit, where the start command had a commit
_READ_AT_ONCE: Final = 100  # specs; parsing them holds the loop
_Run = tuple[RevisionKey, str]  # with the engine that placement chose


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running instance's address and limits."""

    model: str  # the deployment's name
    instance: str
    address: str  # HOST:PORT of the worker's proxy
    secret: str
    limits: ServingLimits = field(default_factory=ServingLimits)
    request_model: str | None = None  # the `model` that its server expects; None: any name
    max_in_flight: int = SERVES_AT_ONCE  # requests at this instance, from all gateways
    revision: str = ""  # its generation
    adapters: Mapping[str, str] = field(default_factory=dict)  # its revision's, each with the `model` of its requests
    certificate: str = ""  # SHA-256 of the proxy's, in hexadecimal digits; empty: the proxy has no TLS
    epoch: int = 0  # the number of the instance's start


class EndpointReader:
    """Reads the endpoints. It keeps what it parsed while each read needs it.

    Attributes:
        closed: ids of workers whose secrets no key here could open at the last read. Their replicas are left out.
        opens_none: whether the last read could open none of the sealed secrets, though there were some.
    """

    def __init__(self, keys: SecretKeys = NO_PROXY_KEYS.keys) -> None:
        self.closed: frozenset[str] = frozenset()
        self.opens_none = False
        self._keys = keys
        self._secrets: Mapping[StoredProxySecret, str | None] = {}
        self._limits: Mapping[str, ServingLimits] = {}
        self._processes: Mapping[_Run, EngineProcess | None] = {}

    async def read(self, connection: Reader) -> tuple[Serving, list[Endpoint]]:
        """Returns the live deployments, and the endpoints of their running instances."""
        serving = await read_serving(connection, self._limits)
        self._limits = serving.limits
        self._processes = await self._read_processes(connection, {(i.revision, i.engine) for i in serving.instances})
        with_port = [
            (instance, process)
            for instance in serving.instances
            if (process := self._processes[instance.revision, instance.engine]) is not None and process.needs_port
        ]
        by_name = [instance.instance for instance, p in with_port if tuple(p.argv[:2]) == _TAKES_ONE_NAME]
        started = await read_started_models(connection, by_name) if by_name else {}
        await self._open({instance.secret for instance, _ in with_port})
        return serving, [
            _endpoint(instance, process, started.get(instance.instance), secret)
            for instance, process in with_port
            if (secret := self._secrets[instance.secret]) is not None
        ]

    async def _open(self, secrets: Collection[StoredProxySecret]) -> None:
        await self._keys.learn({stored.key_id for stored in secrets})
        known = {stored: secret for stored, secret in self._secrets.items() if secret is not None}
        self._secrets = {stored: known[stored] if stored in known else stored.opened(self._keys) for stored in secrets}
        sealed = {stored for stored in secrets if stored.sealed is not None}
        closed = {stored for stored, secret in self._secrets.items() if secret is None}
        self.closed = frozenset(stored.worker_id for stored in closed)
        self.opens_none = bool(closed) and closed == sealed

    async def _read_processes(self, connection: Reader, runs: Collection[_Run]) -> dict[_Run, EngineProcess | None]:
        """The process of each revision with the engine that placement chose; None: unknown to this version."""
        time_slice = TimeSlice()
        processes = {run: self._processes[run] for run in runs if run in self._processes}
        new = [run for run in runs if run not in processes]
        for part in (new[start : start + _READ_AT_ONCE] for start in range(0, len(new), _READ_AT_ONCE)):
            specs = await read_specs(connection, {revision for revision, _ in part})
            for run in part:
                processes[run] = _process(specs.get(run[0]), run[1])
                await time_slice.yield_if_over()
        return processes


def _process(spec: DeploymentSpec | None, engine: str) -> EngineProcess | None:
    try:
        return None if spec is None else engine_for(spec).chosen(engine).process(spec, Launch())
    except ValueError:  # written by another version, as before a downgrade; other instances are served nevertheless
        return None


def _endpoint(instance: RunningInstance, process: EngineProcess, started: str | None, secret: str) -> Endpoint:
    """`started`: the model of its server's start command, where it accepts requests for that name alone."""
    limits = instance.limits
    return Endpoint(
        model=instance.deployment,
        instance=instance.instance,
        epoch=instance.epoch,
        address=instance.address,
        secret=secret,
        certificate=instance.certificate,
        limits=limits,
        request_model=started or process.request_model,
        max_in_flight=process.serves_at_once if limits.max_in_flight == "auto" else limits.max_in_flight,
        revision=str(instance.revision.generation),
        adapters=process.adapters,
    )
