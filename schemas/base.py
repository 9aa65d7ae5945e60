"""The base of manifests and of bodies of requests."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Refuses unknown keys. For manifests and bodies of requests: a misspelt key must not be ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def part(self, base: type[M]) -> M:
        """The fields that this object has from `base`, one of its base classes."""
        return base.model_construct(**{name: getattr(self, name) for name in base.model_fields})
