"""Fields that the release before does not know are stored only where they say something."""

from typing import Any

import pytest

from controller.store.deployments.specs import spec_from_json, spec_to_json
from schemas.manifest.deployment import DeploymentSpec

APPS = {"paths": ["/a"], "csp": "none"}


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("serving", "apps", APPS), ("serving", "stream_usage", "off"), ("placement", "strategy", "pack")],
)
def test_a_default_is_not_stored_and_another_value_is(part: str, field: str, value: Any) -> None:
    plain = DeploymentSpec.model_validate({"command": ["x", "{port}"]})
    stored = spec_to_json(plain)
    assert field not in stored[part]
    assert spec_from_json(stored) == plain
    changed = DeploymentSpec.model_validate({"command": ["x", "{port}"], part: {field: value}})
    assert spec_to_json(changed)[part][field] == value
    assert spec_from_json(spec_to_json(changed)) == changed
