"""Stored specs of deployments, parsed."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import orjson

from schemas.manifest.deployment import DeploymentSpec

# Fields that the release before does not know, with their defaults. Stored without these a spec can be read by its
# gateways and controllers, which run on during an upgrade.
_NEWER: Final = (
    ("placement", "strategy", "auto"),
    ("serving", "stream_usage", "auto"),
    ("serving", "apps", None),
)
_FEWEST: Final = 128  # a parsed spec takes some 14 KiB; parsing one anew, some 50 µs


class _ParsedSpecs:
    """Parses each spec once. Keeps about two of each deployment, since a rollout has an old one and a new one.

    With room for fewer than there are, a read of all would find none of them kept.
    """

    def __init__(self) -> None:
        self._resize(_FEWEST)

    def fit(self, deployments: int) -> None:
        """Follows the number of deployments. Begins anew where it has changed a lot."""
        wanted = max(_FEWEST, 2 * deployments)
        if not 0.75 * wanted <= self._size <= 2 * wanted:
            self._resize(wanted)

    def _resize(self, size: int) -> None:
        self._size = size
        self.parse: Callable[[bytes], DeploymentSpec] = lru_cache(maxsize=size)(_parse)


def _parse(raw: bytes) -> DeploymentSpec:
    return DeploymentSpec.model_validate(orjson.loads(raw))


_PARSED: Final = _ParsedSpecs()


def spec_from_json(value: Any) -> DeploymentSpec:
    """A stored spec; equal ones are parsed once."""
    return _PARSED.parse(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def spec_to_json(spec: DeploymentSpec) -> dict[str, Any]:
    """A spec as it is stored; `spec_from_json` reads the same."""
    stored: dict[str, Any] = spec.model_dump(mode="json")
    for part, field, default in _NEWER:
        if stored[part][field] == default:
            del stored[part][field]
    return stored


def keep_specs_of(deployments: int) -> None:
    """Says how many deployments there are, so that the specs of all of them are kept."""
    _PARSED.fit(deployments)
