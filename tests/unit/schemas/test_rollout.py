"""`update: rolling` and `rollout` in manifests."""

from typing import Any

import pytest

from schemas.manifest.deployment import IN_PLACE_FIELDS, DeploymentSpec
from schemas.manifest.parse import parse_spec
from schemas.manifest.problems import ManifestError


def parsed(**fields: Any) -> DeploymentSpec:
    return parse_spec({"engine": "simulated", "update": "rolling", **fields}, name="chat")


def test_canary_and_abort_are_none_unless_stated_and_a_stored_spec_reads_back() -> None:
    plain = parsed().rollout
    assert (plain.surge, plain.unavailable, plain.ready_for, plain.canary, plain.abort) == (1, 0, 10.0, None, None)
    stated = parsed(rollout={"canary": {"weight": 10, "for": "10m"}, "abort": {"error_ratio": 0.05}})
    assert stated.rollout.canary is not None
    assert (stated.rollout.canary.weight, stated.rollout.canary.for_s) == (10, 600.0)
    assert DeploymentSpec.model_validate(stated.model_dump(mode="json")) == stated


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rollout": {"surge": 0}}, "rollout: surge and unavailable are both 0"),
        ({"rollout": {"surge": -1}}, "rollout.surge: must be at least 0"),
        ({"rollout": {"canary": {"weight": 100}}}, "rollout.canary.weight: must be at most 99"),
        ({"rollout": {"canary": {}}}, "rollout.canary.weight: is required"),
        ({"rollout": {"canary": {"weight": 5, "for": "0s"}}}, "rollout.canary.for: must be at least 1"),
        ({"rollout": {"canery": {}}}, "rollout.canery: unknown key; did you mean 'canary'"),
        ({"rollout": {"abort": {"error_ratio": 0}}}, "rollout.abort.error_ratio: must be"),
        ({"restart": "never"}, "update: must be recreate with restart: never"),
        (
            {"engine": "custom", "command": ["x"], "rollout": {"canary": {"weight": 5}}},
            "rollout: canary and abort need requests",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        parsed(**fields)


def test_how_a_change_is_rolled_out_makes_no_revision_of_its_own() -> None:
    assert {"update", "rollout", "drain_time"} <= IN_PLACE_FIELDS


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"engine": "simulated"}, 600.0),
        ({"command": ["serve", "{port}"]}, 600.0),
        ({"command": ["train"]}, 30.0),
        ({"engine": "simulated", "restart": "never"}, 30.0),
        ({"engine": "simulated", "drain_time": "5s"}, 5.0),
    ],
)
def test_what_serves_drains_for_ten_minutes(fields: dict[str, Any], seconds: float) -> None:
    assert parse_spec(fields, name="chat").drain_s == seconds
