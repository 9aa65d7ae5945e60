"""The names that the engine serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Names:
    """The model's name, the served names (empty: any name), and paths of adapters by name."""

    model: str
    served: tuple[str, ...] = ()
    adapters: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return not self.served or name in self.served or name in self.adapters

    def cards(self) -> list[dict[str, Any]]:
        base = {"object": "model", "created": 0, "owned_by": "gpuward"}
        models = self.served or (self.model,)
        cards: list[dict[str, Any]] = [{"id": name, **base, "root": self.model, "parent": None} for name in models]
        return cards + [{"id": name, **base, "root": path, "parent": models[0]} for name, path in self.adapters.items()]
