"""The answer to `POST /apply`: what became of each manifest."""

from schemas.api.view import Literal, View


class AppliedObject(View, frozen=True, kw_only=True):
    """One object as it is now.

    Attributes:
        outcome: `replaced`: a new revision, so instances are replaced; `updated`: changed in place.
    """

    kind: Literal["Deployment", "UtilizationPolicy"]
    name: str
    uid: str
    generation: int
    outcome: Literal["created", "unchanged", "updated", "replaced"]


class ApplyView(View, frozen=True, kw_only=True):
    """All objects, in the order in which they were applied: policies first.

    Attributes:
        warnings: such as unknown names of workers and GPUs; each begins with the deployment.
    """

    items: list[AppliedObject]
    warnings: list[str] = []
