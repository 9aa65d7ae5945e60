"""The figures of the whole fleet as metrics: capacity, what waits, waste, replicas, backlogs, and the last audit."""

from collections.abc import Iterable
from typing import Final, get_args

from prometheus_client.core import GaugeMetricFamily, Metric

from controller.domain.phases import DeploymentPhase
from controller.store.access.key_expiry import KEY_STATES
from controller.store.views.fleet_figures import FleetFigures
from schemas.api.access import Role

_STATES: Final = ("claimed", "free", "unusable")
Samples = Iterable[tuple[tuple[str, ...], float]]


def fleet_families(fleet: FleetFigures) -> list[Metric]:
    """The families."""
    return [
        *_capacity(fleet),
        _gauge(
            "gpuward_instances_waiting",
            "Instances without a place, by the reason that they wait for.",
            ("reason",),
            (((reason,), amount.number) for reason, amount in fleet.waiting.items()),
        ),
        _gauge(
            "gpuward_instances_waiting_oldest_seconds",
            "For how long the oldest instance without a place waits, by reason.",
            ("reason",),
            (((reason,), amount.oldest_s) for reason, amount in fleet.waiting.items()),
        ),
        _gauge(
            "gpuward_idle_gpus",
            "GPUs that instances hold which their policy finds idle; a share of a GPU counts as that share.",
            ("deployment",),
            (((name,), idle.gpus) for name, idle in fleet.idle.items()),
        ),
        _gauge(
            "gpuward_idle_gpu_seconds",
            "GPU seconds since these instances became idle.",
            ("deployment",),
            (((name,), idle.gpu_s) for name, idle in fleet.idle.items()),
        ),
        *_deployments(fleet),
        *_leader_and_ledger(fleet),
        *_keys(fleet),
    ]


def _capacity(fleet: FleetFigures) -> list[Metric]:
    labels = ("model", "state")
    found = fleet.capacity.items()
    return [
        _gauge(
            "gpuward_gpus",
            "GPUs by model and state; they add up to all.",
            labels,
            (((model, state), one.gpus[state]) for model, one in found for state in _STATES),
        ),
        _gauge(
            "gpuward_gpus_memory_bytes",
            "GPU memory by model and state; it adds up to all that can be claimed.",
            labels,
            (((model, state), one.memory_bytes[state]) for model, one in found for state in _STATES),
        ),
    ]


def _deployments(fleet: FleetFigures) -> list[Metric]:
    return [
        _gauge(
            "gpuward_deployments",
            "Deployments by phase.",
            ("phase",),
            (((phase.value,), fleet.deployments.get(phase.value, 0)) for phase in DeploymentPhase),
        ),
        _gauge(
            "gpuward_deployment_wanted_replicas",
            "Replicas of a deployment that shall run, within the limits of its user and its policy.",
            ("deployment",),
            (((name,), one.wanted) for name, one in fleet.replicas.items()),
        ),
        _gauge(
            "gpuward_deployment_ready_replicas",
            "Replicas of a deployment that run and answer their health checks.",
            ("deployment",),
            (((name,), one.ready) for name, one in fleet.replicas.items()),
        ),
    ]


def _leader_and_ledger(fleet: FleetFigures) -> list[Metric]:
    return [
        _gauge(
            "gpuward_leader_known",
            "1 if any controller holds the lease and renews it, else 0.",
            (),
            [((), float(fleet.led))],
        ),
        _gauge("gpuward_agents_connected", "Agents that are connected to any controller.", (), [((), fleet.agents)]),
        _gauge(
            "gpuward_audit_violations",
            "Violations of an invariant that the last audit of the ledger found, up to 100.",
            ("invariant",),
            (((name,), count) for name, count in fleet.violations.items()),
        ),
        _gauge(
            "gpuward_audit_age_seconds",
            "Time since the last audit of the ledger; absent before the first one.",
            (),
            [] if fleet.audit_age_s is None else [((), fleet.audit_age_s)],
        ),
        _gauge(
            "gpuward_history_age_seconds",
            "Time since samples were last summed up into the history.",
            (),
            [] if fleet.history_age_s is None else [((), fleet.history_age_s)],
        ),
        _gauge(
            "gpuward_backlog",
            "Things that wait for the controllers: commands, webhooks, relocations, wakes, deletions.",
            ("kind",),
            (((kind,), amount.number) for kind, amount in fleet.backlog.items()),
        ),
        _gauge(
            "gpuward_backlog_oldest_seconds",
            "For how long the oldest of these waits; 0 where none does.",
            ("kind",),
            (((kind,), amount.oldest_s) for kind, amount in fleet.backlog.items()),
        ),
        _gauge("gpuward_database_size_bytes", "Size of the database.", (), [((), fleet.database_bytes)]),
    ]


def _keys(fleet: FleetFigures) -> list[Metric]:
    return [
        _gauge(
            "gpuward_api_keys",
            "API keys that are not revoked: `lasting`, `expiring` within 7 days, or `expired`. A key that has a "
            "successor, or was made for at most 7 days, counts as lasting until it expires.",
            ("role", "state"),
            (((role, state), fleet.keys.keys.get((role, state), 0)) for role in get_args(Role) for state in KEY_STATES),
        ),
        _gauge(
            "gpuward_api_key_expiry_timestamp_seconds",
            "When the next API key of a role expires that has no successor and was made for more than 7 days, in "
            "seconds since 1970; absent where none does.",
            ("role",),
            (((role,), at_s) for role, at_s in sorted(fleet.keys.next_s.items())),
        ),
    ]


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in samples:
        family.add_metric(key, value)
    return family
