"""One step of a deployment, decided: the effects on instances that a test describes."""

from dataclasses import replace
from typing import Any

from controller.decide.instances.decide import Finished, decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceState
from controller.domain.placement import Need
from controller.domain.restart_delays import RestartSettings
from support.builders.facts import deployment, host, instance, process

SETTINGS = RestartSettings()
RUNNING = (process("running"),)
LOST = (host(phase="lost", reason="silent"), host("w2"))


def effects_of(
    *instances: InstanceState, finished: Finished | None = None, known: Need | None = None, **fields: Any
) -> DeploymentEffects:
    """What the next step of a deployment with these instances does."""
    return decide(deployment(*instances, **fields), SETTINGS, finished, known)


def phases_of(effects: DeploymentEffects) -> list[str]:
    """The phases that instances change to, in order."""
    return [change.to.value for change in effects.phase_changes]


def running(name: str, **fields: Any) -> InstanceState:
    """An instance that runs."""
    return instance(name, "running", processes=RUNNING, **fields)


def elsewhere(name: str, **fields: Any) -> InstanceState:
    """A running instance on worker w2."""
    one = running(name, **fields)
    return replace(one, claims=tuple(replace(c, worker_id="w2") for c in one.claims))
