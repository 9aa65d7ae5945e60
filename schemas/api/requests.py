"""Bodies of requests other than manifests, and what clients send on a live socket."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from schemas.api.access import MAX_TOKEN_USES, Role
from schemas.fields import Line, Seconds, Strict, Text, Whole
from schemas.manifest.resources import MAX_REPLICAS
from schemas.wire.join import WORKER_NAME
from schemas.worker_labels import AGENT_PREFIX

MOST_LABELS: Final = 64
MOST_NETWORKS: Final = 64
_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
_MOST_CHARS: Final = 253
MAX_AWAKE_S = 30 * 86400.0
MAX_UNUSED_S = 3650 * 86400.0
MAX_TOKEN_TTL_S = 30 * 86400.0
MAX_KEY_TTL_S = 3650 * 86400.0
MAX_OVERLAP_S = 90 * 86400.0
MAX_RATE = 1_000_000_000
MAX_TOKENS_PER_DAY = 10**15
MAX_PARALLEL = 1_000_000


def _labels(labels: Mapping[str, str | None]) -> Mapping[str, str | None]:
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key[:80]!r} is not a valid key: letters, digits, '.', '_', '/' and '-', at most 253")
        if key.startswith(AGENT_PREFIX):
            raise ValueError(f"{key}: labels that begin with {AGENT_PREFIX} are set by the agent; remove it")
        if value is not None and not (value.isprintable() and len(value) <= _MOST_CHARS):
            raise ValueError(f"{key}: must have at most {_MOST_CHARS} printable characters")
    return labels


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is not a network such as 10.1.2.0/24: {error}") from error


StatedLabels = Annotated[dict[str, str], Field(max_length=MOST_LABELS), AfterValidator(_labels)]
StatedLabelChanges = Annotated[dict[str, str | None], Field(max_length=MOST_LABELS), AfterValidator(_labels)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], Field(max_length=MOST_NETWORKS)]


def _of_a_key(seconds: float) -> float:
    if not 1 <= seconds <= MAX_KEY_TTL_S:
        raise ValueError("must be between 1s and 3650d")
    return seconds


KeyTtl = Annotated[Seconds, AfterValidator(_of_a_key)]
ModelGlob = Annotated[
    str,
    Field(
        min_length=1, max_length=200, pattern=r"^[^\s,\x00]+$", description="a name such as chat, or a glob: embed-*"
    ),
]

NAME_GLOB = re.compile(r"[a-z0-9*?-]{1,63}")


class ScaleBody(Strict):
    """`POST /deployments/{name}/scale`: the number of replicas, or the fewest, the most, or both."""

    replicas: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] | None = None
    min: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] | None = None
    max: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "ScaleBody":
        ranged = self.min is not None or self.max is not None
        if ranged == (self.replicas is not None):
            raise ValueError("replicas: write a number of replicas, or min, max or both")
        return self

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The fewest and the most replicas; None: as they are."""
        return (self.min, self.max) if self.replicas is None else (self.replicas, self.replicas)


class WakeBody(Strict):
    """`POST /deployments/{name}/wake`: how long it stays awake without requests; 0 ends that."""

    for_s: Annotated[Seconds, Field(ge=0, le=MAX_AWAKE_S)] = 3600.0


MAX_DEMANDS = 100
MAX_DRAIN_S = 30 * 86400.0
DEFAULT_DRAIN_S = 1800.0


class DrainBody(Strict):
    """`POST /workers/{name}/drain`: how a worker is drained. No body means the defaults.

    On a worker that is drained already, what is not written stays as it is.

    Attributes:
        now: everything stops at once and starts elsewhere afterwards, tasks too.
        timeout: how long the drain waits for replacements to run before the old instances stop; default 30m.
        restart_tasks: tasks with `restart: never` that run after `timeout` are stopped, and start elsewhere from
            their beginning; default false: the worker stays `draining` until they end.
    """

    now: bool = False
    timeout: Annotated[Seconds, Field(ge=0, le=MAX_DRAIN_S)] | None = None
    restart_tasks: bool | None = None

    @model_validator(mode="after")
    def _not_both(self) -> "DrainBody":
        if self.now and self.timeout is not None:
            raise ValueError("timeout: write it without now, which waits for nothing")
        return self


class DrainPlanBody(DrainBody):
    """`POST /plan/drain`: workers that would be drained together, and how."""

    workers: Annotated[list[Text], Field(min_length=1, max_length=1000)]


_CachedModel = Annotated[str, Field(pattern=r"^hf:[\w.-]+(/[\w.-]+)?(@[\w./-]+)?$")]


class PruneBody(Strict):
    """`POST /workers/{name}/cache/prune`: which models to remove; without any, all that no process uses.

    Attributes:
        models: only these, as `hf:org/name` or, of one revision, `hf:org/name@revision`.
        unused_for_s: only those that no process has used for so long.
    """

    models: Annotated[list[_CachedModel], Field(max_length=1000)] = []
    unused_for_s: Annotated[Seconds, Field(ge=0, le=MAX_UNUSED_S)] = 0.0


class PlanBody(Strict):
    """`POST /plan`: complete manifests, planned together.

    Attributes:
        candidates: also answers for every GPU whether it could be selected by hand, for a few deployments at once. The
            advice then leaves out the instances whose end would help, which takes long to find.
    """

    manifests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]
    candidates: bool = False


class PolicyPlanBody(Strict):
    """`POST /plan/policies`: complete manifests, planned together."""

    manifests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


_Generations = Annotated[dict[str, Annotated[Whole, Field(ge=0)]], Field(max_length=1000)]


class ExpectedGenerations(Strict):
    """The generations of objects by name, as a plan tells them; 0: it must not exist. Others may be at any."""

    deployments: _Generations = {}
    policies: _Generations = {}


class ApplyBody(Strict):
    """`POST /apply`: complete manifests, applied together: all of them, or none.

    Attributes:
        expected: where one object is at another generation, nothing is applied.
    """

    manifests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]
    expected: ExpectedGenerations = ExpectedGenerations()


class KeyLimitsBody(Strict):
    """What a key may use. Null: without a limit. Each limit counts over all gateways together."""

    models: Annotated[
        list[ModelGlob], Field(max_length=100, description="names or globs of models; an empty list: all")
    ] = []
    rpm: Annotated[Whole, Field(ge=1, le=MAX_RATE, description="requests per minute")] | None = None
    tpm: Annotated[Whole, Field(ge=1, le=MAX_RATE, description="tokens per minute, of prompts and answers")] | None = (
        None
    )
    tokens_per_day: Annotated[Whole, Field(ge=1, le=MAX_TOKENS_PER_DAY, description="tokens per day of UTC")] | None = (
        None
    )
    parallel: Annotated[Whole, Field(ge=1, le=MAX_PARALLEL, description="requests at once")] | None = None
    expires_s: Annotated[KeyTtl | None, Field(description="time from now until the key expires")] = None


class KeyBody(KeyLimitsBody):
    """`POST /keys`. The default name is the role."""

    role: Role
    name: Annotated[Line, Field(max_length=200)] = ""

    @model_validator(mode="after")
    def _limits_of_models(self) -> Self:
        refuse_limits(self.role, self)
        return self


class KeyUpdateBody(KeyLimitsBody):
    """`PATCH /keys/{id}`. Fields that are not given stay; null removes a limit."""

    name: Annotated[Line, Field(min_length=1, max_length=200)] | None = None


class KeyRotationBody(Strict):
    """`POST /keys/{id}/rotate`."""

    overlap_s: Annotated[Seconds, Field(description="time from now until the old key expires")] = 86_400.0
    expires_s: Annotated[
        KeyTtl | None,
        Field(description="time from now until the new key expires; absent: as long as the old one's"),
    ] = None

    @field_validator("overlap_s")
    @classmethod
    def _short(cls, value: float) -> float:
        if not 0 <= value <= MAX_OVERLAP_S:
            raise ValueError("must be between 0s and 90d")
        return value


def refuse_limits(role: str, body: KeyLimitsBody) -> None:
    """Checks that a key which cannot ask models has no limits on them.

    Raises:
        ValueError: it has one.
    """
    if role == "viewer":
        for name in ("models", "rpm", "tpm", "tokens_per_day", "parallel"):
            if getattr(body, name):
                raise ValueError(f"{name}: a viewer's key cannot ask models; leave it out, or write role inference")


class RestartBody(Strict):
    """`POST /deployments/{name}/restart`. No body restarts all of its instances.

    Attributes:
        instance: only this one.
        pull: a new revision of the same spec, which takes the models and images that hub and registry have now.
    """

    instance: Text | None = None
    pull: bool = False

    @model_validator(mode="after")
    def _whole(self) -> "RestartBody":
        if self.pull and self.instance is not None:
            raise ValueError("instance: write it without pull, which makes a new revision of the whole deployment")
        return self


class UndoBody(Strict):
    """`POST /deployments/{name}/rollout/undo`."""

    revision: Annotated[Whole, Field(ge=1, description="number of the revision; absent: the one before")] | None = None


class TokenBody(Strict):
    """`POST /tokens`."""

    expires_s: Seconds = 3600.0
    uses: Annotated[int, Field(ge=1, le=MAX_TOKEN_USES)] = 1
    name: Annotated[str, Field(pattern=WORKER_NAME)] | None = Field(
        None, description="the only name that a worker may join with"
    )
    labels: Annotated[StatedLabels, Field(description="trusted labels of the workers that join with it")] = {}
    advertise_networks: Annotated[
        Networks, Field(description="within which they may advertise another address than they connect from")
    ] = []

    @model_validator(mode="after")
    def _one_of_a_name(self) -> Self:
        if self.name is not None and self.uses > 1:
            raise ValueError("uses: must be 1 with a name, since one worker has it")
        return self

    @field_validator("expires_s")
    @classmethod
    def _bounded(cls, value: float) -> float:
        if not 1 <= value <= MAX_TOKEN_TTL_S:
            raise ValueError("must be between 1s and 30d")
        return value


class WorkerBody(Strict):
    """`PATCH /workers/{name}`. What is absent stays as it is."""

    labels: Annotated[StatedLabelChanges, Field(description="trusted labels; null removes one")] = {}
    advertise_networks: (
        Annotated[
            Networks, Field(description="within which its agent may advertise another address than it connects from")
        ]
        | None
    ) = None


class SecretScopeBody(Strict):
    """`PATCH /secrets/{name}`. What is absent stays as it is."""

    deployments: Annotated[list[str], Field(max_length=100)] | None = Field(
        None, description="Names of deployments that may use it, or patterns such as `team-a-*`; empty: all may."
    )
    admins_only: bool | None = Field(None, description="Whether only an administrator may write it into a deployment.")

    @field_validator("deployments")
    @classmethod
    def _globs(cls, value: list[str] | None) -> list[str] | None:
        for glob in value or ():
            if not NAME_GLOB.fullmatch(glob):
                raise ValueError(
                    f"{glob[:80]!r}: must be a deployment's name, or a pattern such as team-a-*, "
                    "of a-z, 0-9, '-', '*' and '?'"
                )
        return value


class SecretBody(SecretScopeBody):
    """`PUT /secrets/{name}`."""

    value: Annotated[str, Field(max_length=65536)]
    plain: bool = Field(
        False, description="Store it unencrypted where the controller has no key. With a key it is encrypted anyway."
    )


class DefragBody(Strict):
    """Body of `POST /defrag`. Pending instances are always considered first, then those of `manifests`.

    An instance of a higher priority than those that shall fit is relocated only with `any_priority`.
    """

    apply: bool = False
    any_priority: bool = False
    manifests: Annotated[list[dict[str, Any]], Field(max_length=MAX_DEMANDS)] = []


class SessionBody(Strict):
    """`POST /session`: the API key of which the browser gets a session."""

    key: Annotated[str, Field(min_length=1, max_length=256)]


class LiveRequest(Strict):
    """What the client sends, as text: it opens or closes a topic under an id of its own choice, or asks for a `pong`.

    Attributes:
        id: of the topic; of a `ping` any number, with which the answer comes.
        topic: `objects`, `gpus`, `events` or `logs`; needed to open one.
        params: of the topic, as the query of the route of the same data has them.
    """

    op: Literal["open", "close", "ping"]
    id: int = Field(ge=0, le=2**53)
    topic: str = ""
    params: dict[str, str | int | bool | list[str] | None] = Field(default={}, max_length=16)
