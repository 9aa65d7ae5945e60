"""How a new revision replaces the old one under `update: rolling`."""

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BeforeValidator, Field, create_model, model_validator

from schemas.fields import Seconds, Strict, Whole, no_flag

MAX_SURGE: Final = 1000
LONGEST_S: Final = 7 * 86_400.0
_DEFAULT_CANARY_S: Final = 600.0


class _Canary(Strict):
    weight: Annotated[Whole, Field(ge=1, le=99)] = Field(
        description="Percent of the requests that go to the new revision meanwhile."
    )

    @property
    def for_s(self) -> float:
        """How long the canary lasts, in seconds."""
        return float(getattr(self, "for"))


if TYPE_CHECKING:

    class Canary(_Canary):
        """The first part of a rollout."""
else:
    # `for` is a keyword, so no class statement can declare it.
    Canary = create_model(
        "Canary",
        __base__=_Canary,
        __doc__="The first part of a rollout: the new revision gets a share of the requests for a time.",
        __module__=__name__,
        **{
            "for": (
                Annotated[Seconds, Field(ge=1, le=LONGEST_S)],
                Field(
                    _DEFAULT_CANARY_S,
                    description="How long that lasts, from the moment its replicas are ready. Then the rollout goes "
                    "on by itself. 1s to 7d.",
                ),
            )
        },
    )


class Abort(Strict):
    """When a rollout is aborted by itself: the old revision gets all requests again."""

    error_ratio: Annotated[float, BeforeValidator(no_flag), Field(gt=0, le=1)] = Field(
        0.05,
        description="Largest share of the new revision's requests that may end with a 5xx of the engine or with its "
        "death, such as 0.05.",
    )
    after_requests: Annotated[Whole, Field(ge=1, le=1_000_000)] = Field(
        50, description="Requests to the new revision before its errors are judged."
    )


class Rollout(Strict):
    """The bounds of a rollout, its canary, and when it is aborted."""

    surge: Annotated[Whole, Field(ge=0, le=MAX_SURGE)] = Field(
        1, description="Instances beyond `replicas` that may exist meanwhile, those that drain included."
    )
    unavailable: Annotated[Whole, Field(ge=0, le=MAX_SURGE)] = Field(
        0, description="Instances of `replicas` that may be missing meanwhile."
    )
    ready_for: Annotated[Seconds, Field(ge=0, le=LONGEST_S)] = Field(
        10.0, description="How long a new instance must run before it counts as available. At most 7d."
    )
    canary: Canary | None = Field(
        None, description="Begin with a share of the requests for a time. Absent: all replicas are replaced at once."
    )
    abort: Abort | None = Field(None, description="Abort by itself on errors. Absent: errors are not judged.")

    @model_validator(mode="after")
    def _can_begin(self) -> "Rollout":
        if self.surge == 0 and self.unavailable == 0:
            raise ValueError("surge and unavailable are both 0, so no instance could be replaced; raise one of them")
        return self
