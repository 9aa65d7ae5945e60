"""The limits of requests to a model: durations, bounded, and changed without new processes."""

import pytest
from pydantic import ValidationError

from controller.domain.spec_changes import change_between
from schemas.manifest.deployment import DeploymentSpec


def spec(**serving: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", "serving": serving})


def test_the_limits_are_durations_with_defaults() -> None:
    assert (spec().serving.first_token_timeout, spec().serving.silence_timeout) == (1800.0, 300.0)
    given = spec(first_token_timeout="2s", silence_timeout="1h").serving
    assert (given.first_token_timeout, given.silence_timeout) == (2.0, 3600.0)


@pytest.mark.parametrize("wrong", ["0s", 0, "25h", "none", -1, None, True])
def test_other_values_are_refused(wrong: object) -> None:
    with pytest.raises(ValidationError, match="first_token_timeout"):
        spec(first_token_timeout=wrong)


def test_they_change_in_place() -> None:
    assert change_between(spec(), spec(silence_timeout="10m")) == "updated"
    assert change_between(spec(), spec(silence_timeout="5m")) == "unchanged"
