"""Fields that the release before does not know are stored only with another value than their default."""

from pathlib import Path
from typing import Any

import pytest

from controller.store.deployments.specs import NEWER_FIELDS, leave_out, policy_to_json, spec_from_json, spec_to_json
from controller.store.policies.effective import policy_from_json
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec, UtilizationPolicy
from support.builders.manifest_fields import manifest_fields

# The fields that the release before knows. After a release, write this file again from the release's tree, by
# `PYTHONPATH=. .venv/bin/python tests/support/builders/manifest_fields.py`, and remove from `NEWER_FIELDS` what it has.
RELEASE_BEFORE = Path(__file__).with_name("fields_of_the_release_before.txt")
APPS = {"paths": ["/a"], "csp": "none"}
PLAIN = DeploymentSpec.model_validate({"command": ["x", "{port}"]})


def parents(path: str) -> set[str]:
    """The path itself, and the paths of the sections that hold it."""
    parts = path.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def value_at(spec: Any, path: str) -> Any:
    for name in path.split("."):
        spec = spec[name]
    return spec


def test_every_field_that_the_release_before_does_not_know_is_listed() -> None:
    fields, known = manifest_fields(), set(RELEASE_BEFORE.read_text(encoding="utf-8").split())
    assert len(known & fields) > 80
    assert NEWER_FIELDS.keys() <= fields
    unlisted = {path for path in fields - known if not parents(path) & NEWER_FIELDS.keys()}
    assert unlisted == set(), "list them in NEWER_FIELDS: the release before cannot read a spec that names them"


@pytest.mark.parametrize("path", NEWER_FIELDS)
def test_the_listed_default_is_the_default(path: str) -> None:
    assert value_at(PLAIN.model_dump(mode="json"), path) == NEWER_FIELDS[path]


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("serving", "apps", APPS), ("serving", "stream_usage", "off"), ("placement", "strategy", "pack")],
)
def test_a_default_is_not_stored_and_another_value_is(part: str, field: str, value: Any) -> None:
    stored = spec_to_json(PLAIN)
    assert field not in stored[part]
    assert spec_from_json(stored) == PLAIN
    changed = DeploymentSpec.model_validate({"command": ["x", "{port}"], part: {field: value}})
    assert spec_to_json(changed)[part][field] == value
    assert spec_from_json(spec_to_json(changed)) == changed


def test_a_policy_stores_newer_fields_as_a_deployment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PolicySpec.model_fields.keys() - UtilizationPolicy.model_fields.keys() == {"default"}
    monkeypatch.setitem(NEWER_FIELDS, "utilization_policy.dry_run", False)  # type: ignore[misc]
    monkeypatch.setitem(NEWER_FIELDS, "utilization_policy.webhook.secret", "webhook")  # type: ignore[misc]
    given = {"min_gpu_utilization": 10, "time_window": 60}
    plain = PolicySpec.model_validate({**given, "webhook": "https://host/path"})
    assert "dry_run" not in policy_to_json(plain)
    assert policy_to_json(plain)["webhook"] == {"url": "https://host/path"}
    assert policy_from_json(policy_to_json(plain)).webhook == plain.webhook
    assert policy_to_json(PolicySpec.model_validate({**given, "dry_run": True}))["dry_run"] is True


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a", {"a": None, "b": 1}, {"b": 1}),
        ("a", {"a": 2, "b": 1}, {"a": 2, "b": 1}),
        ("a.b", {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ("a.b", {"a": None}, {"a": None}),
        ("a.*.b", {"a": [{"b": None}, {"b": 1}]}, {"a": [{}, {"b": 1}]}),
        ("a.*.b", {"a": {"x": {"b": None}, "y": "z"}}, {"a": {"x": {}, "y": "z"}}),
    ],
)
def test_a_default_is_left_out_at_any_depth(path: str, before: Any, after: Any) -> None:
    leave_out(before, path, None)
    assert before == after
