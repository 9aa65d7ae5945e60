"""The number of replicas of a deployment, and how it follows the requests."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from schemas.fields import Seconds, Strict, Whole, no_flag

MAX_REPLICAS: Final = 100_000
LONGEST_WINDOW_S: Final = 600.0
LONGEST_DOWN_S: Final = 86_400.0
_LONGEST_IDLE_S: Final = 30 * 86_400.0
_Number = Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)]


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
    """Refuses what is neither a number nor a mapping, with both ways to write it."""
    if isinstance(value, bool) or not isinstance(value, int | float | Mapping | ReplicaRange):
        raise ValueError(f"must be a whole number or {{min: 0, max: 4}}, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _target(value: object) -> object:
    """Refuses what is neither a number nor `auto`."""
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
    """The fewest and the most replicas; equal where a number is given. Takes the stored JSON as well."""
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
