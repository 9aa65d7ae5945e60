"""Runs all checks concurrently, each within its deadline, and judges the results."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from agent.decide.doctor import controller, gpus, host
from agent.decide.doctor.finding import Finding, fails, ok
from agent.doctor import controller_probe, docker_probe, host_probes, programs
from agent.errors import AgentError, RefusedError
from agent.gpus.simulated import load_host
from agent.link.controllers import Controllers
from agent.state.host_state import HostState
from agent.tasks import in_background
from http1.tls.pinned import trusting

_QUICK_S: Final = 5.0
_NVML_S: Final = 30.0  # without persistence mode, the driver initializes every GPU at the first call
_ENGINES_S: Final = 2 * programs.ENGINE_LIMIT_S + 5.0

# The order of printed findings.
ORDER: Final = (
    "driver", "nvml", "gpu", "docker", "cgroups", "isolation", "environment", "agent", "port", "ports", "disk",
    "limits", "engine", "controller", "credential", "protocol", "clock",
)  # fmt: skip

_OF_AGENTS: Final = frozenset({"gpu", "agent", "port", "credential", "protocol"})  # the rest are of the host

_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Patient:
    """Settings of the agent to examine, by the names of `AgentSettings`."""

    data_dir: Path
    cache_dir: Path
    controller_urls: tuple[str, ...] = ()  # empty: unknown
    ca: Path | None = None
    proxy_host: str = "0.0.0.0"  # noqa: S104 - as the agent's setting
    proxy_port: int = 0  # 0: as in the journal
    simulate: Path | None = None
    name: str | None = None  # of the simulated host
    token: bool = False  # the agent has a join token
    engine_user: str | None = None
    docker: str | None = None  # the Docker engine's address; None: the agent runs no containers
    engine_environment: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # the environment of an agent that starts here


def examine_quietly(patients: Sequence[Patient]) -> tuple[Finding, ...]:
    """All findings, without log lines of the agent's modules.

    `patients` are agents of this host, at least one. Host-wide checks use the settings of the first.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return asyncio.run(_examine_all(patients))


async def _examine_all(patients: Sequence[Patient]) -> tuple[Finding, ...]:
    first, *others = patients
    if not others:
        return await examine(first)
    examined = await asyncio.gather(examine(first), *map(_examine_agent, others))
    named = [
        replace(finding, message=f"{patient.name}: {finding.message}") if finding.check in _OF_AGENTS else finding
        for patient, findings in zip(patients, examined, strict=True)
        for finding in findings
    ]
    return _in_order(named)


async def _examine_agent(patient: Patient) -> tuple[Finding, ...]:
    """Findings of one agent, without those of its host."""
    checks = [_within("agent", 4 * _QUICK_S, partial(_agent, patient))]
    if patient.simulate is not None:
        checks.append(_within("nvml", _NVML_S, partial(_gpus, patient)))
    findings = itertools.chain.from_iterable(await asyncio.gather(*checks))
    return tuple(finding for finding in findings if finding.check in _OF_AGENTS)


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: ORDER.index(finding.check)))


async def examine(patient: Patient) -> tuple[Finding, ...]:
    """All findings, in the order of `ORDER`, within about half a minute."""
    checks: list[Awaitable[list[Finding]]] = [
        _within("nvml", _NVML_S, partial(_gpus, patient)),
        _within("cgroups", _QUICK_S, partial(_cgroups, patient)),
        _within("isolation", _QUICK_S, partial(_isolation, patient)),
        _within("environment", _QUICK_S, partial(_environment, patient)),
        _within("agent", 4 * _QUICK_S, partial(_agent, patient)),
        _within("ports", _QUICK_S, _ports),
        _within("disk", _QUICK_S, partial(_disks, patient)),
        _within("engine", _ENGINES_S, partial(_engines, patient)),
    ]
    return _in_order(itertools.chain.from_iterable(await asyncio.gather(*checks)))


async def _within(check: str, limit_s: float, probe: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    """A probe's findings; its time-out or failure is a finding."""
    try:
        async with asyncio.timeout(limit_s):
            return await probe()
    except TimeoutError:
        text = f"no result within {limit_s:g} s"
        return [fails(check, text, "See whether the disk, the driver or the network hangs: `dmesg`.")]
    except Exception as error:  # noqa: BLE001 - a failing check must not hide other findings
        return [fails(check, f"it cannot be examined: {error!r}", "Run `gpuward doctor` again as root.")]


async def _gpus(patient: Patient) -> list[Finding]:
    if patient.simulate is not None:
        try:
            worker = load_host(patient.simulate, patient.name)
        except AgentError as error:
            return [fails("gpu", str(error), "Correct the file or --name.")]
        simulated = ok("gpu", f"{sum(gpu.count for gpu in worker.gpus)} simulated GPUs of {worker.name}")
        return [simulated, *host.judge_limits(await in_background(partial(host_probes.probe_limits, 0)))]
    driver = await in_background(host_probes.probe_driver)
    nvml, docker = await asyncio.gather(host_probes.probe_nvml(), docker_probe.probe_docker(patient.docker))
    limits = await in_background(partial(host_probes.probe_limits, len(nvml.gpus)))
    return [
        gpus.judge_driver(driver, nvml),
        gpus.judge_nvml(driver, nvml),
        *gpus.judge_gpus(nvml),
        gpus.judge_containers(docker, nvml),
        *host.judge_limits(limits),
    ]


async def _cgroups(patient: Patient) -> list[Finding]:
    agent, _ = await in_background(partial(host_probes.read_agent, patient.data_dir))
    return [host.judge_cgroups(await in_background(partial(host_probes.probe_cgroups, agent.pid)))]


async def _isolation(patient: Patient) -> list[Finding]:
    folders = (patient.data_dir.parent, patient.cache_dir)
    return [
        host.judge_isolation(await in_background(partial(host_probes.probe_isolation, patient.engine_user, folders)))
    ]


async def _environment(patient: Patient) -> list[Finding]:
    agent, _ = await in_background(partial(host_probes.read_agent, patient.data_dir))
    given = (agent.pid, patient.variables, patient.engine_environment)
    return [host.judge_environment(await in_background(partial(host_probes.probe_environment, *given)))]


async def _agent(patient: Patient) -> list[Finding]:
    agent, journal = await in_background(partial(host_probes.read_agent, patient.data_dir))
    port = await in_background(
        partial(host_probes.probe_port, patient.proxy_host, patient.proxy_port or agent.port or 0)
    )
    if port.listening:
        is_agent, connected = await controller_probe.probe_agent(port.port)
        port = replace(port, is_agent=is_agent)
        if agent.pid is not None and port.port == agent.port:
            agent = replace(agent, connected=connected)
    return [
        *gpus.judge_condemned(await in_background(partial(host_probes.condemned_gpus, journal))),
        host.judge_agent(agent),
        _port(patient, port, agent),
        *await _controller(patient, agent, journal),
    ]


def _port(patient: Patient, port: host.PortProbe, agent: host.AgentProbe) -> Finding:
    if patient.proxy_port == 0 and port.listening and not port.is_agent:
        return host.judge_port(host.PortProbe(0), agent)  # the agent takes another port
    return host.judge_port(port, agent)


async def _controller(patient: Patient, agent: host.AgentProbe, journal: HostState | None) -> list[Finding]:
    """Findings of the first controller that answers, else of the first."""
    controllers, probed = Controllers(patient.controller_urls or ("",), patient.ca, patient.data_dir), []
    try:
        # The agent's folder has the authority that a join token named.
        tls = controllers.tls() if agent.readable else trusting(patient.ca)
    except (RefusedError, OSError) as error:
        return [Finding("controller", "fails", str(error), "name the authority of the controller with --ca")]
    for url in patient.controller_urls or (None,):
        given = {"readable": agent.readable, "token": patient.token}
        probed.append(await controller_probe.probe_controller(url, journal, **given, tls=tls))
        if probed[-1].status == _OK:
            break
    probe = probed[-1] if probed[-1].status == _OK else probed[0]
    clock = controller.judge_clock(probe)
    return [*controller.judge_controller(probe), *([clock] if clock is not None else [])]


async def _ports() -> list[Finding]:
    return [host.judge_engine_ports(await in_background(host_probes.engine_ports))]


async def _disks(patient: Patient) -> list[Finding]:
    folders = [("the agent's data", patient.data_dir), (host.MODELS, patient.cache_dir)]
    return [host.judge_disk(await in_background(partial(host_probes.probe_disk, *folder))) for folder in folders]


async def _engines(patient: Patient) -> list[Finding]:
    return list(host.judge_engines(await programs.installed(patient.engine_environment)))
