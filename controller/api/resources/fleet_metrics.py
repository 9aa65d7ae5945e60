"""Metrics of the fleet: capacity, pending instances, waste, replicas, backlogs, the last audit, and GPUs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.domain.phases import DeploymentPhase
from controller.store.access.key_expiry import KEY_STATES
from controller.store.views.metrics import FleetFigures, GpuFigures
from schemas.api.access import Role

_STATES: Final = ("claimed", "free", "unusable")
Samples = Iterable[tuple[Sequence[str], float]]
_HERTZ_PER_MHZ: Final = 1e6
_LABELS: Final = ["worker", "gpu_uuid"]
# Name, text, field of the details, factor to base units.
_GAUGES: Final = (
    ("gpuward_gpu_power_watts", "Power that a GPU draws.", "power_w", 1.0),
    ("gpuward_gpu_temperature_celsius", "Temperature of a GPU.", "temperature_c", 1.0),
    ("gpuward_gpu_sm_clock_hertz", "Clock of a GPU's multiprocessors.", "sm_clock_mhz", _HERTZ_PER_MHZ),
    ("gpuward_gpu_memory_clock_hertz", "Clock of a GPU's memory.", "memory_clock_mhz", _HERTZ_PER_MHZ),
    ("gpuward_gpu_nvlinks_up", "NVLinks of a GPU that are up.", "nvlinks", 1.0),
)
_COUNTERS: Final = (
    ("gpuward_gpu_energy_joules", "Energy that a GPU has used since its driver was loaded.", "energy_j"),
    (
        "gpuward_gpu_ecc_corrected_errors",
        "Corrected memory errors of a GPU since its driver was loaded.",
        "ecc_corrected",
    ),
    (
        "gpuward_gpu_ecc_uncorrected_errors",
        "Memory errors of a GPU that were not corrected, since its driver was loaded.",
        "ecc_uncorrected",
    ),
)


def fleet_families(fleet: FleetFigures) -> list[Metric]:
    return [
        *_capacity(fleet),
        gauge(
            "gpuward_instances_waiting",
            "Instances without a place, by the reason that they wait for.",
            ("reason",),
            (((reason,), amount.number) for reason, amount in fleet.waiting.items()),
        ),
        gauge(
            "gpuward_instances_waiting_oldest_seconds",
            "For how long the oldest instance without a place waits, by reason.",
            ("reason",),
            (((reason,), amount.oldest_s) for reason, amount in fleet.waiting.items()),
        ),
        gauge(
            "gpuward_idle_gpus",
            "GPUs that instances hold which their policy finds idle; a share of a GPU counts as that share.",
            ("deployment",),
            (((name,), idle.gpus) for name, idle in fleet.idle.items()),
        ),
        gauge(
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
    capacity = fleet.capacity.items()
    return [
        gauge(
            "gpuward_gpus",
            "GPUs by model and state; they add up to all.",
            labels,
            (((model, state), of_model.gpus[state]) for model, of_model in capacity for state in _STATES),
        ),
        gauge(
            "gpuward_gpus_memory_bytes",
            "GPU memory by model and state; it adds up to all that can be claimed.",
            labels,
            (((model, state), of_model.memory_bytes[state]) for model, of_model in capacity for state in _STATES),
        ),
    ]


def _deployments(fleet: FleetFigures) -> list[Metric]:
    return [
        gauge(
            "gpuward_deployments",
            "Deployments by phase.",
            ("phase",),
            (((phase.value,), fleet.deployments.get(phase.value, 0)) for phase in DeploymentPhase),
        ),
        gauge(
            "gpuward_deployment_wanted_replicas",
            "Replicas of a deployment that shall run, within the limits of its user and its policy.",
            ("deployment",),
            (((name,), one.wanted) for name, one in fleet.replicas.items()),
        ),
        gauge(
            "gpuward_deployment_ready_replicas",
            "Replicas of a deployment that run and answer their health checks.",
            ("deployment",),
            (((name,), one.ready) for name, one in fleet.replicas.items()),
        ),
    ]


def _leader_and_ledger(fleet: FleetFigures) -> list[Metric]:
    return [
        gauge(
            "gpuward_leader_known",
            "1 if any controller holds the lease and renews it, else 0.",
            (),
            [((), float(fleet.led))],
        ),
        gauge("gpuward_agents_connected", "Agents that are connected to any controller.", (), [((), fleet.agents)]),
        gauge(
            "gpuward_audit_violations",
            "Violations of an invariant that the last audit of the ledger found, up to 100.",
            ("invariant",),
            (((name,), count) for name, count in fleet.violations.items()),
        ),
        gauge(
            "gpuward_audit_age_seconds",
            "Time since the last audit of the ledger; absent before the first one.",
            (),
            [] if fleet.audit_age_s is None else [((), fleet.audit_age_s)],
        ),
        gauge(
            "gpuward_history_age_seconds",
            "Time since samples were last summed up into the history.",
            (),
            [] if fleet.history_age_s is None else [((), fleet.history_age_s)],
        ),
        gauge(
            "gpuward_backlog",
            "Things that wait for the controllers: commands, webhooks, relocations, wakes, deletions.",
            ("kind",),
            (((kind,), amount.number) for kind, amount in fleet.backlog.items()),
        ),
        gauge(
            "gpuward_backlog_oldest_seconds",
            "For how long the oldest of these waits; 0 where none does.",
            ("kind",),
            (((kind,), amount.oldest_s) for kind, amount in fleet.backlog.items()),
        ),
        gauge("gpuward_database_size_bytes", "Size of the database.", (), [((), fleet.database_bytes)]),
    ]


def _keys(fleet: FleetFigures) -> list[Metric]:
    return [
        gauge(
            "gpuward_api_keys",
            "API keys that are not revoked: `lasting`, `expiring` within 7 days, or `expired`. A key that has a "
            "successor, or was made for at most 7 days, counts as lasting until it expires.",
            ("role", "state"),
            (((role, state), fleet.keys.keys.get((role, state), 0)) for role in get_args(Role) for state in KEY_STATES),
        ),
        gauge(
            "gpuward_api_key_expiry_timestamp_seconds",
            "When the next API key of a role expires that has no successor and was made for more than 7 days, in "
            "seconds since 1970; absent where none does.",
            ("role",),
            (((role,), at_s) for role, at_s in sorted(fleet.keys.next_s.items())),
        ),
    ]


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in samples:
        family.add_metric(key, value)
    return family


def gpu_families(figures: Mapping[tuple[str, str], GpuFigures]) -> list[Metric]:
    families: list[Metric] = [_health(figures)]
    for name, text, field, factor in _GAUGES:
        families.append(gauge(name, text, _LABELS, ((key, one * factor) for key, one in _values(figures, field))))
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_LABELS)
        for key, value in _values(figures, field):
            counter.add_metric(key, value)
        families.append(counter)
    xids = CounterMetricFamily(
        "gpuward_gpu_xids", "Error events (Xids) of a GPU since its agent started, by code.", labels=[*_LABELS, "xid"]
    )
    for (worker, uuid), gpu in figures.items():
        for code, number in gpu.details.get("xids", {}).items():
            xids.add_metric([worker, uuid, code], number)
    return [*families, xids]


def _health(figures: Mapping[tuple[str, str], GpuFigures]) -> Metric:
    return gauge(
        "gpuward_gpu_healthy",
        "1 if a GPU is healthy, 0 if it is unhealthy or missing; absent if unknown.",
        _LABELS,
        ((key, float(gpu.healthy)) for key, gpu in figures.items() if gpu.healthy is not None),
    )


def _values(figures: Mapping[tuple[str, str], GpuFigures], field: str) -> Iterable[tuple[list[str], Any]]:
    return ((list(key), value) for key, gpu in figures.items() if (value := gpu.details.get(field)) is not None)
