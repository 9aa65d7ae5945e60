"""The start command of one process, from its spec and its claims. Pure."""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from controller.domain.placement import Layout, Need
from controller.engines.base import IN_CONTAINER, LOOPBACK, Engine, Launch, models_of_host
from controller.engines.containers import container_env, container_of, image_key
from controller.engines.pinning import named_fetches, pinned_models
from controller.engines.registry import engine_for
from schemas.manifest.deployment import DeploymentSpec, SecretRef
from schemas.manifest.probe import Probe
from schemas.wire import ClaimOrder, StartOrder

# The ports on the leader's host where the processes of a gang meet: below those that agents choose from (18000 and up)
# and above those of well-known servers. The search starts at a port that follows from instance and epoch, so the next
# epoch tries another port if a stranger has taken this one.
RENDEZVOUS_PORTS: Final = range(10_000, 18_000)
_PROBE: Final = Probe()
_NO_LAYOUT: Final = Layout(gpus=0, memory_mib=0, exclusive=False)


class ClaimedGpu(Protocol):
    """A claim as far as a start command needs it."""

    @property
    def device(self) -> str: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def exclusive(self) -> bool: ...


def start_payload(
    spec: DeploymentSpec,
    *,
    deployment: str,
    deployment_uid: str,
    gpus: Sequence[ClaimedGpu],
    engine: str = "",
    layout: Layout | None = None,
    gpu_mib: int = 0,
    others_mib: int = 0,
    gang: str = "",
    rendezvous: int | None = None,
    rank: int = 0,
    leader: str = "",
    need: Need | None = None,
    builds: Iterable[str] = (),
    commits: Mapping[str, str] = {},
) -> dict[str, Any]:
    """A start command as JSON, with two keys for its dispatch.

    `env_secrets`: secrets are filled in then, and never stored. `default_image`: the entry of the controller's map of
    images, which its settings may change.

    Args:
        spec: of the revision.
        deployment: its name.
        deployment_uid: its uid.
        gpus: this rank's claims on GPUs, in the order in which the process lists them.
        engine: chosen by placement; empty if the spec leaves no choice.
        layout: chosen by placement.
        gpu_mib: memory of the largest GPU; 0 if unknown.
        others_mib: the most that other instances have claimed of one GPU.
        gang: instance and epoch; equal for all ranks, and different from other gangs.
        rendezvous: the port at which its ranks meet; None for any.
        rank: this process's rank in its gang.
        leader: host name or address of the leader's worker, if the gang spans several.
        need: of the revision; the process starts with the context and sequences that its memory was estimated for.
        builds: the worker's engines and their builds.
        commits: of models of the hub, which the revision keeps, by `org/name@revision`.
    """
    layout = layout or _NO_LAYOUT
    own_need = None if need is None else dict(need.by_engine).get(engine, need)
    share = None if own_need is None else own_need.share_of(layout)
    launch = Launch(
        name=deployment,
        gpu_count=len(gpus),
        memory_mib=min((claim.memory_mib for claim in gpus), default=0),
        gpu_mib=gpu_mib,
        others_mib=others_mib,
        exclusive=any(claim.exclusive for claim in gpus),
        need_mib=layout.memory_mib,
        tp=layout.tp,
        pp=layout.pp,
        dp=layout.dp,
        workers=layout.workers,
        rank=rank,
        leader=leader,
        rendezvous_port=rendezvous_port(gang) if rendezvous is None else rendezvous,
        builds=frozenset(() if spec.runtime == "docker" else builds),  # an image has builds of its own
        context=None if own_need is None else own_need.context_of(layout),
        sequences=None if own_need is None else own_need.sequences_of(layout),
        activation_mib=0 if share is None else share.parts.get("activations", 0) + share.parts.get("images", 0),
        cache_mib=0 if share is None else share.cache_mib,
        block_bytes=0 if share is None else share.block_bytes,
        host=IN_CONTAINER if spec.runtime == "docker" else LOOPBACK,
    )
    own = engine_for(spec).chosen(engine)
    spec = pinned_models(spec, own.name, commits) if commits else spec
    order = _order(spec, deployment, deployment_uid, gpus, own, launch)
    if order.fetches:
        order = replace(order, fetches=named_fetches(order.fetches, commits))
    payload: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(order))
    payload["env_secrets"] = {name: value.secret for name, value in spec.env.items() if isinstance(value, SecretRef)}
    if order.container is not None and (key := image_key(spec, own.name, launch.gpu_count)) is not None:
        payload["default_image"] = key
    return payload


def _order(
    spec: DeploymentSpec,
    deployment: str,
    deployment_uid: str,
    gpus: Sequence[ClaimedGpu],
    engine: Engine,
    launch: Launch,
) -> StartOrder:
    process = engine.process(spec, launch)
    plain = {name: value for name, value in spec.env.items() if not isinstance(value, SecretRef)}
    in_container = spec.runtime == "docker"
    stop_after, stalled = spec.stop_on_disconnect_after, spec.probe or _PROBE
    return StartOrder(
        deployment=deployment,
        deployment_uid=deployment_uid,
        argv=tuple(process.argv),
        env={**process.env, **(container_env(spec, engine.name) if in_container else {}), **plain},
        claims=tuple(_claims(gpus)),
        needs_port=process.needs_port,
        probe=process.probe,
        start_timeout_s=spec.start_timeout,
        drain_time_s=spec.drain_s,
        stop_on_disconnect_after_s=None if stop_after == "none" else stop_after,
        simulated_load=process.simulated_load,
        gpus_by_index=process.gpus_by_index,
        **process.metrics._asdict(),
        stalled_requests=stalled.no_answer_requests,
        stalled_after_s=stalled.no_answer_after,
        fetches=process.fetches,
        reads=() if in_container else tuple(dict.fromkeys(models_of_host(spec, engine))),
        container=container_of(spec, engine, launch) if in_container else None,
        host_memory_mib=None if spec.resources.host_memory == "auto" else spec.resources.host_memory,
    )


def rendezvous_port(gang: str, taken: Collection[int] = ()) -> int:
    """The port in `RENDEZVOUS_PORTS` at which the processes of a gang meet. `taken`: by other gangs on that host."""
    first, number = zlib.crc32(gang.encode()), len(RENDEZVOUS_PORTS)
    ports = (RENDEZVOUS_PORTS[(first + n) % number] for n in range(number))
    return next((port for port in ports if port not in taken), RENDEZVOUS_PORTS[first % number])


def _claims(gpus: Iterable[ClaimedGpu]) -> Iterable[ClaimOrder]:
    return (ClaimOrder(device=c.device, memory_mib=c.memory_mib, exclusive=c.exclusive) for c in gpus)
