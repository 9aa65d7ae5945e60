"""Well-known models with the facts of their analyses, from their published configs (`make estimates`)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from controller.domain.placement import Need
from controller.engines.registry import engine_for
from schemas.manifest.deployment import DeploymentSpec

_FILE: Final = Path(__file__).with_name("well_known_models.json")


@dataclass(frozen=True, slots=True)
class WellKnownModel:
    """A spec with the model alone, and its estimated need."""

    spec: DeploymentSpec
    source: str
    facts: Mapping[str, Any]
    need: Need


@cache
def well_known_models() -> tuple[WellKnownModel, ...]:
    """All models, by increasing bytes of weights."""
    entries = sorted(json.loads(_FILE.read_text(encoding="utf-8")), key=lambda entry: _size(entry["facts"]))
    return tuple(_model(entry) for entry in entries)


def _size(facts: Mapping[str, Any]) -> int:
    return int(facts["weight_bytes"])


def _model(entry: Mapping[str, Any]) -> WellKnownModel:
    spec = DeploymentSpec.model_validate({"model": entry["model"]})
    return WellKnownModel(spec, entry["source"], entry["facts"], engine_for(spec).need(spec, entry["facts"]))
