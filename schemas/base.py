"""The base of every wire model: frozen, and closed to keys that it does not know."""

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Frozen; unknown keys are refused. For what users write and for what agent and controller say."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class View(BaseModel):
    """Frozen; unknown keys are ignored, so that an older client reads a newer server. For what the API returns."""

    model_config = ConfigDict(frozen=True, extra="ignore")
