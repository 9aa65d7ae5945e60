"""What a start needs: each kind of reference that no start can satisfy, and whether its instance may preempt."""

from dataclasses import dataclass

import pytest

from controller.decide.start_needs import secret_names, unmet_needs, why_no_preemption
from controller.domain.access.secret_scopes import ALL_DEPLOYMENTS, SecretScope
from controller.domain.admission import RefusedStart
from controller.domain.restart_delays import RestartSettings
from schemas.manifest.deployment import DeploymentSpec

SETTINGS = RestartSettings()


@dataclass(frozen=True)
class Known:
    scope: SecretScope = ALL_DEPLOYMENTS
    problem: str = ""


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        ({}, "secret_missing"),
        ({"other": Known()}, "secret_missing"),
        ({"token": Known(SecretScope(("b*",)))}, "secret_forbidden"),
        ({"token": Known(problem="the key is not here")}, "secret_unreadable"),
        ({"token": Known(SecretScope(("b*",)), problem="the key is not here")}, "secret_unreadable"),
        ({"token": Known()}, None),
        ({"token": Known(SecretScope(("a",)))}, None),
        ({"token": Known(SecretScope(admins_only=True))}, None),
    ],
)
def test_a_secret_that_no_start_can_have(stored: dict[str, Known], code: str | None) -> None:
    spec = DeploymentSpec.model_validate(
        {"engine": "simulated", "env": {"X": "plain", "HF_TOKEN": {"secret": "token"}, "AGAIN": {"secret": "token"}}}
    )
    needs = unmet_needs("a", secret_names(spec), stored)
    assert [(need.code, need.path, need.secret) for need in needs] == (
        [(code, "env.HF_TOKEN", "token")] if code else []
    )
    assert bool(why_no_preemption(needs, None, 0, SETTINGS)) is (code is not None)


@pytest.mark.parametrize("code", ["bad_command", "unknown_device", "a_code_of_a_newer_agent"])
def test_after_a_lasting_refusal_nothing_is_preempted_until_the_worker_has_changed(code: str) -> None:
    for ago_s in (0.0, 1e6):
        assert why_no_preemption([], RefusedStart(code, "why", "w", ago_s, changed=False), 1, SETTINGS)
        assert not why_no_preemption([], RefusedStart(code, "why", "w", ago_s, changed=True), 1, SETTINGS)


@pytest.mark.parametrize(
    "code", ["claim_conflict", "shutting_down", "old_term", "old_epoch", "refused", "", "secret_missing"]
)
def test_after_a_passing_refusal_nothing_is_preempted_during_the_delay(code: str) -> None:
    for failures, delay_s in ((0, 10.0), (1, 10.0), (2, 20.0), (9, 300.0)):
        for ago_s, may in ((0.0, False), (delay_s - 1, False), (delay_s, True)):
            refused = RefusedStart(code, "why", "w", ago_s, changed=True)
            assert (not why_no_preemption([], refused, failures, SETTINGS)) is may
