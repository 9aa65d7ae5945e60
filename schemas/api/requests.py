"""Bodies of requests other than manifests."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from schemas.api.access import Role
from schemas.base import Strict
from schemas.fields import Text, Whole
from schemas.manifest.deployment import MAX_REPLICAS
from schemas.quantities import Seconds

MAX_TOKEN_TTL_S = 30 * 86400.0


class ScaleBody(Strict):
    """`POST /deployments/{name}/scale`."""

    replicas: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)]


class PlanBody(Strict):
    """`POST /plan`: complete manifests, planned together."""

    manifests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


class KeyBody(Strict):
    """`POST /keys`. The default name is the role."""

    role: Role
    name: Annotated[Text, Field(max_length=200)] = ""


class TokenBody(Strict):
    """`POST /tokens`."""

    expires_s: Seconds = 3600.0

    @field_validator("expires_s")
    @classmethod
    def _bounded(cls, value: float) -> float:
        if not 1 <= value <= MAX_TOKEN_TTL_S:
            raise ValueError("must be between 1s and 30d")
        return value


class SecretBody(Strict):
    """`PUT /secrets/{name}`."""

    value: Annotated[str, Field(max_length=65536)]
