"""Stored specs of deployments, parsed."""

from functools import lru_cache
from typing import Any

import orjson

from schemas.manifest.deployment import DeploymentSpec


@lru_cache(maxsize=1024)  # a parsed spec takes some 14 KiB; parsing one anew, some 50 µs
def _parse_spec(raw: bytes) -> DeploymentSpec:
    return DeploymentSpec.model_validate(orjson.loads(raw))


def spec_from_json(value: Any) -> DeploymentSpec:
    """A stored spec; equal ones are parsed once."""
    return _parse_spec(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
