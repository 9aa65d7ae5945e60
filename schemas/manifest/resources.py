"""The parts of a `Deployment` that placement and scaling read: resources, parallelism, placement, and replicas."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from schemas.fields import (
    ScalarText,
    Seconds,
    SizeMibOrAuto,
    SizeMibOrAutoOrAll,
    SizeMibOrNone,
    Strict,
    Text,
    Whole,
    no_flag,
)

Capability = tuple[int, int]
_BOUND: Final = re.compile(r"\s*(>=|<=|==|>|<)\s*(\d{1,3})(?:\.(\d{1,3}))?\s*")
_BLANKS: Final = re.compile(r"[\s\-_]+")
_MAX_BOUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class CapabilityBound:
    """A bound such as `>= 8.0`."""

    relation: str
    version: Capability

    def allows(self, capability: Capability | None) -> bool:
        """Whether a compute capability is within the bound; False if it is unknown."""
        if capability is None:
            return False
        return {
            ">=": capability >= self.version,
            "<=": capability <= self.version,
            "==": capability == self.version,
            ">": capability > self.version,
            "<": capability < self.version,
        }[self.relation]

    def __str__(self) -> str:
        return f"{self.relation}{self.version[0]}.{self.version[1]}"


def capability_bounds(text: str) -> tuple[CapabilityBound, ...]:
    """The bounds in a text such as `>=8.0,<9.0`; none for `none`.

    Raises:
        ValueError: not valid, or no compute capability is within all bounds.
    """
    if text == "none":
        return ()
    matches = [_BOUND.fullmatch(part) for part in text.split(",")]
    if len(matches) > _MAX_BOUNDS or not all(matches):
        raise ValueError(f'{text!r} is not a valid requirement; write for example ">=8.0", "==9.0" or ">=8.0,<9.0"')
    bounds = tuple(CapabilityBound(m[1], (int(m[2]), int(m[3] or 0))) for m in matches if m is not None)
    # Minor versions are integers, so those next to the bounds represent all others.
    near = [(major, minor + step) for major, minor in (bound.version for bound in bounds) for step in (-1, 0, 1)]
    if not any(all(bound.allows(version) for bound in bounds) for version in near):
        raise ValueError(f"{text!r} contradicts itself: no GPU can meet it")
    return bounds


def compute_capability_text(text: str) -> str:
    """The text itself, if it is valid."""
    capability_bounds(text)
    return text


def gpu_model_text(text: str) -> str:
    """The text itself, if it names a model.

    Raises:
        ValueError: it has neither a letter nor a digit.
    """
    if not re.search(r"[^\W_]", text):
        raise ValueError(f"{text!r} is not a valid part of a GPU's name; write for example H100")
    return text


def matches_model(model: str, parts: Iterable[str]) -> bool:
    """Whether a GPU's name contains one of these parts. Case does not matter, and blanks and dashes are alike.

    A part starts at the start of a word, and never ends within a number: `A10` is not part of `NVIDIA A100`.
    """
    name = _canonical(model)
    return any(re.search(rf"(?<![^\W_]){re.escape(_canonical(part))}(?!(?<=\d)\d)", name) for part in parts)


def _canonical(text: str) -> str:
    return _BLANKS.sub(" ", text).strip().lower()


MAX_GPUS: Final = 4096
MAX_REPLICAS: Final = 100_000
LONGEST_WINDOW_S: Final = 600.0
LONGEST_DOWN_S: Final = 86_400.0
_LONGEST_IDLE_S: Final = 30 * 86_400.0
_Number = Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)]


class Resources(Strict):
    """The resources that one instance claims."""

    gpus: Annotated[Whole, Field(ge=0, le=MAX_GPUS)] | Literal["auto"] = Field(
        "auto",
        description="GPUs of one instance, over all its workers. `auto`: as many as the model needs. "
        "For a custom command `auto` is 1 if `gpu_memory` or `exclusive` asks for a GPU, else 0.",
    )
    gpu_memory: SizeMibOrAutoOrAll = Field(
        "auto",
        description="Memory to claim on each GPU, such as `20GiB`. `auto`: the estimate for the model, "
        "or whole GPUs if there is no estimate. `all`: whole GPUs.",
    )
    exclusive: bool = Field(
        default=False, description="Claim whole GPUs that no other instance shares. `gpu_memory: all` does the same."
    )
    max_workers: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1,
        description="Most workers over which one instance may be spread. "
        "Values above 1 need an engine that can span hosts.",
    )
    host_memory: SizeMibOrAuto = Field(
        "auto",
        description="Main memory to claim on each worker of the instance, such as `16GiB`. "
        "`auto`: the estimate of the engine; none for a custom command.",
    )
    cpus: Annotated[float, BeforeValidator(no_flag), Field(ge=0, le=65536)] | Literal["auto"] = Field(
        "auto", description="CPU cores to claim on each worker of the instance; fractions are allowed. `auto`: none."
    )

    gpu_models: Annotated[tuple[Annotated[Text, AfterValidator(gpu_model_text)], ...], Field(max_length=64)] = Field(
        (),
        description="GPU models to use, each a part of the name that the driver reports, such as `[H100, A100-SXM4]`. "
        "Letters may be upper or lower case; blanks and dashes are alike. Empty: any model.",
    )
    min_gpu_memory: SizeMibOrNone = Field(
        "none", description="Least memory that each GPU has in all, claimed or not, such as `40GiB`. `none`: any size."
    )
    compute_capability: Annotated[Text, AfterValidator(compute_capability_text)] = Field(
        "none",
        description='CUDA compute capability that each GPU must have, such as `">=8.0"` or `">=8.0,<9.0"`. '
        "`none`: what the engine and the model need.",
    )

    @field_validator("gpu_memory")
    @classmethod
    def _some_memory(cls, value: int | str) -> int | str:
        if value == 0:
            raise ValueError("must be more than 0; write a size such as 20GiB, or remove it")
        return value

    @model_validator(mode="after")
    def _some_gpu(self) -> "Resources":
        if self.gpus == 0 and self.asks_for_a_gpu_kind:
            raise ValueError(
                "gpus is 0, but gpu_models, min_gpu_memory or compute_capability asks for a GPU; remove one of them"
            )
        return self

    @property
    def asks_for_a_gpu_kind(self) -> bool:
        """Whether any field states a kind of GPU."""
        return bool(self.gpu_models) or self.min_gpu_memory != "none" or self.compute_capability != "none"

    @property
    def asks_for_a_gpu(self) -> bool:
        """Whether any field but `gpus` requires a GPU."""
        return self.gpu_memory != "auto" or self.exclusive or self.asks_for_a_gpu_kind


Degree = Annotated[Whole, Field(ge=1, le=MAX_GPUS)] | Literal["auto"]


class Parallel(Strict):
    """Degrees of parallelism. If one is stated, the others default to 1 and their product is the number of GPUs."""

    tp: Degree = Field(
        "auto",
        description="Tensor parallelism: GPUs that split each layer. "
        "`auto`: chosen with the placement, or 1 if another degree is stated.",
    )
    pp: Degree = Field(
        "auto",
        description="Pipeline parallelism: GPUs that hold different layers. "
        "`auto`: chosen with the placement, or 1 if another degree is stated.",
    )
    dp: Degree = Field("auto", description="Data parallelism: copies of the model inside one instance. `auto`: 1.")

    @property
    def world(self) -> int | None:
        """The number of GPUs that the stated degrees need together; None if none is stated."""
        stated = [d for d in (self.tp, self.pp, self.dp) if d != "auto"]
        if not stated:
            return None
        world = 1
        for degree in stated:
            world *= degree
        return world


class Placement(Strict):
    """Where an instance may be placed. Manual selection passes the same checks as automatic selection."""

    strategy: Literal["auto", "pack", "spread", "least_fragmentation"] = Field(
        "auto",
        description="How to choose among the places that fit. `auto` fills used GPUs and workers first, and puts two "
        "replicas on one GPU only where nothing else fits. `pack` does so wherever it fills the GPU. "
        "`spread` puts replicas on different workers. "
        "`least_fragmentation` keeps free GPUs usable for the usual demand.",
    )
    labels: Annotated[dict[Text, ScalarText], Field(max_length=64)] = Field(
        {}, description="Labels that the worker must have, such as `{zone: a}`. Empty: any worker."
    )
    workers: Annotated[tuple[Text, ...], Field(max_length=1024)] = Field(
        (),
        description="Names of the only workers to use. Those that are not ready are left out. Empty: any worker.",
    )
    gpus: Annotated[tuple[Text, ...], Field(max_length=MAX_GPUS)] = Field(
        (),
        description="The only GPUs to use, each as its UUID or as `worker:index`. Each instance takes all of them if "
        "`resources.gpus` or `parallel` states that many, else what it needs of them. Empty: any GPU.",
    )
    all_of: bool = Field(
        default=False,
        description="Each instance takes all of the named workers and all of the named GPUs. "
        "`resources.max_workers` must then be the number of the named workers.",
    )

    @field_validator("gpus")
    @classmethod
    def _distinct_gpus(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("lists the same GPU twice; remove one")
        return value


class ReplicaRange(Strict):
    """Fewest and most replicas. Between them the number follows the requests."""

    min: _Number = Field(description="Fewest instances to run. 0: it sleeps without requests, and one wakes it.")
    max: Annotated[Whole, Field(ge=1, le=MAX_REPLICAS)] = Field(description="Most instances to run.")

    @model_validator(mode="after")
    def _in_order(self) -> "ReplicaRange":
        if self.max < self.min:
            raise ValueError(f"max must be at least min, which is {self.min}, got {self.max}")
        return self


def _no_text(value: object) -> object:
    """Refuses values that are neither a number nor a mapping."""
    if isinstance(value, bool) or not isinstance(value, int | float | Mapping | ReplicaRange):
        raise ValueError(f"must be a whole number or {{min: 0, max: 4}}, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _target(value: object) -> object:
    """Refuses values that are neither a number nor `auto`."""
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"must be a number or auto, got {value!r}")
    return value


def _form(value: object) -> str:
    return "range" if isinstance(value, Mapping | ReplicaRange) else "number"


Replicas = Annotated[
    Annotated[_Number, Tag("number")] | Annotated[ReplicaRange, Tag("range")],
    Discriminator(_form),
    BeforeValidator(_no_text),
]


def bounds_of(replicas: int | ReplicaRange | Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most replicas; also for the stored JSON."""
    match replicas:
        case int():
            return replicas, replicas
        case ReplicaRange():
            return replicas.min, replicas.max
        case _:
            return int(replicas["min"]), int(replicas["max"])


class Scaling(Strict):
    """How the number of replicas follows the requests, between `min` and `max` of `replicas`."""

    target: Annotated[
        Annotated[float, BeforeValidator(no_flag), Field(gt=0, le=1_000_000)] | Literal["auto"],
        BeforeValidator(_target),
    ] = Field(
        "auto",
        description="Requests in flight and waiting for which one replica is wanted. "
        "`auto`: 0.7 times `serving.max_in_flight`.",
    )
    window: Annotated[Seconds, Field(ge=1, le=LONGEST_WINDOW_S)] = Field(
        10.0,
        description="Replicas are added by the mean demand of so long. From zero they are added at once. 1s to 10m.",
    )
    down_window: Annotated[Seconds, Field(ge=0, le=LONGEST_DOWN_S)] = Field(
        300.0,
        description="Replicas are removed down to the largest number that was needed within so long. At most 24h.",
    )
    idle_after: Annotated[Seconds, Field(ge=1, le=_LONGEST_IDLE_S)] = Field(
        900.0, description="With `min: 0`, the deployment sleeps after so long without requests. 1s to 30d."
    )
    dry_run: bool = Field(
        default=False, description="Only show the number that would be wanted; `min` runs, and at least one."
    )
