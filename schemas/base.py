"""The bases of all schemas. Both are frozen; they differ in what they do about unknown keys."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Refuses unknown keys. For manifests and bodies of requests: a misspelt key must not be ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def part(self, base: type[M]) -> M:
        """The fields that this object has from `base`, one of its base classes."""
        return base.model_construct(**{name: getattr(self, name) for name in base.model_fields})


class View(BaseModel):
    """Ignores unknown keys, so that an older client can read a newer server. For what the API returns."""

    model_config = ConfigDict(frozen=True, extra="ignore")
