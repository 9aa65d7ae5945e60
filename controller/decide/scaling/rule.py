"""What a manifest says about scaling, with the engine's figures where it says `auto`. Pure."""

from typing import Final

from controller.domain.scaling import ScalingRule
from controller.engines.base import SERVES_AT_ONCE, Launch
from controller.engines.registry import engine_for
from schemas.manifest.deployment import DeploymentSpec

_OF_CAPACITY: Final = 0.7


def max_in_flight(spec: DeploymentSpec, engine: str = "", sequences: int | None = None) -> int:
    """The most requests at one replica.

    Args:
        spec: of the deployment.
        engine: that placement chose; empty: the spec's only one, or not chosen yet.
        sequences: concurrent requests that its need allows for; None: unknown.
    """
    stated = spec.serving.max_in_flight
    if stated != "auto":
        return stated
    try:
        return engine_for(spec).chosen(engine).process(spec, Launch(sequences=sequences)).serves_at_once
    except ValueError:  # written by another version, or an engine that is not chosen yet
        return SERVES_AT_ONCE


def rule_of(spec: DeploymentSpec, engine: str = "", sequences: int | None = None) -> ScalingRule:
    """The rule; the arguments are those of `max_in_flight`."""
    low, high = spec.replica_bounds
    scaling = spec.scaling
    most = max_in_flight(spec, engine, sequences)
    target = max(_OF_CAPACITY * most, 1.0) if scaling.target == "auto" else scaling.target
    return ScalingRule(
        min=low,
        max=high,
        target=target,
        window_s=scaling.window,
        down_window_s=scaling.down_window,
        idle_after_s=scaling.idle_after,
        dry_run=scaling.dry_run,
        most=most,
    )
