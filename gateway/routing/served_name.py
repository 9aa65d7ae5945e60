"""A name in the list of models."""

from dataclasses import dataclass
from typing import Literal

ModelStateName = Literal["asleep", "waking", "running"]


@dataclass(frozen=True, slots=True)
class ServedName:
    """A name under which requests may ask for a model. `adapter_of`: the deployment, where it is an adapter."""

    state: ModelStateName
    adapter_of: str = ""
