"""What proves that no process of an instance can still run, and that its GPU is gone."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.instances.liveness import (
    host_is_dead,
    is_lost,
    is_silent,
    leaves_lost_gpu,
    lost_gpu,
    may_run,
    never_ran,
)
from controller.domain.instances import CommandState, InstanceClaim, InstanceState, ReportedProcess
from controller.domain.workers import QUARANTINED
from support.builders.facts import NOW, deployment, host, instance, process, spec, start

LATER, BEFORE = NOW + timedelta(seconds=1), NOW - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("fields", "dead"),
    [
        ({}, False),
        ({"confirmed_dead": True}, True),
        ({"phase": "lost"}, False),  # without a fence its processes do not end by themselves
        ({"phase": "lost", "fence_until": LATER}, False),
        ({"phase": "lost", "fence_until": NOW}, True),
        ({"phase": "lost", "fence_until": BEFORE}, True),
        ({"phase": "unreachable", "fence_until": BEFORE}, False),
    ],
)
def test_a_host_is_dead_once_confirmed_or_when_its_fence_is_over(fields: dict[str, Any], dead: bool) -> None:
    assert host_is_dead(deployment(hosts=(host(**fields),)), "w1") is dead
    assert not host_is_dead(deployment(hosts=(host(**fields),)), "w2"), "of an unknown worker nothing is proven"
    assert not host_is_dead(deployment(hosts=(host(**fields),)), None)


@pytest.mark.parametrize(
    ("commands", "processes", "runs", "never"),
    [
        ((), (), False, True),
        ((start("open", sent=False),), (), True, True),  # it may be sent yet
        ((start("open"),), (), True, False),
        ((start(),), (), True, False),
        ((start("refused"),), (), False, True),
        ((start("withdrawn"),), (), False, True),
        ((start(),), (process("running"),), True, False),
        ((start(),), (process("exited"),), False, False),
        ((), (process("running"),), True, False),
        ((start("refused"),), (process("running"),), True, False),
        ((start(epoch=0),), (process("running", epoch=0),), False, True),  # of an earlier start
    ],
)
def test_a_rank_may_run_unless_its_start_was_refused_or_it_exited(
    commands: tuple[CommandState, ...], processes: tuple[ReportedProcess, ...], runs: bool, never: bool
) -> None:
    at = instance("a", "starting", commands=commands, processes=processes)
    assert may_run(deployment(at), at, 0) is runs
    assert never_ran(at, 0) is never
    assert not may_run(deployment(at, hosts=(host(confirmed_dead=True),)), at, 0)


@pytest.mark.parametrize(
    ("fields", "silent", "lost"),
    [
        ({}, False, False),
        ({"phase": "unreachable", "reason": "silent"}, True, False),
        ({"phase": "lost", "reason": "silent"}, True, True),
        ({"phase": "unreachable", "reason": min(QUARANTINED)}, False, False),
        ({"deleted": True}, True, False),
        ({"confirmed_dead": True}, False, True),
        ({"phase": "unreachable", "reason": min(QUARANTINED), "deleted": True}, True, False),
    ],
)
def test_a_worker_is_silent_or_lost(fields: dict[str, Any], silent: bool, lost: bool) -> None:
    at = instance("a", "running")
    known = deployment(at, hosts=(host(**fields), host("w2", phase="lost")))
    assert (is_silent(known, at), is_lost(known, at)) == (silent, lost)


def with_gpus(*gone: str, phase: str = "unhealthy") -> InstanceState:
    claims = tuple(InstanceClaim(f"GPU-{n}", "w1", "gpu", 1, 0, 1024, 0, False, n) for n in range(len(gone)))
    of_host = InstanceClaim("host-w1", "w1", "host", 1, 0, 0, 0, False, 9)
    return instance("a", phase, claims=(*(replace(c, gone=g) for c, g in zip(claims, gone, strict=True)), of_host))


def test_a_lost_gpu_is_named_with_its_reason() -> None:
    at = with_gpus("", "gpu_off_bus")
    assert lost_gpu(deployment(at), at) == "its GPU GPU-1 is gone: gpu_off_bus"
    assert lost_gpu(deployment(at, hosts=(host(phase="lost"),)), at) is None, "of a silent worker nothing is known"
    fine = with_gpus("", "")
    assert lost_gpu(deployment(fine), fine) is None


@pytest.mark.parametrize(
    ("phase", "fields", "leaves"),
    [
        ("unhealthy", {}, True),
        ("starting", {}, True),
        ("scheduled", {}, True),
        ("running", {}, False),  # first it is shown as unhealthy
        ("backoff", {}, False),
        ("unhealthy", {"restart": "on_failure"}, True),
        ("unhealthy", {"restart": "never"}, False),
        ("unhealthy", {"placement": {"gpus": ["GPU-0", "GPU-1"]}}, False),  # too few of the named are left
        ("unhealthy", {"placement": {"gpus": ["GPU-0", "GPU-1", "GPU-2"]}}, True),
        ("unhealthy", {"placement": {"gpus": ["GPU-0", "GPU-2"]}}, True),
    ],
)
def test_an_instance_leaves_a_lost_gpu_where_its_spec_allows_another(
    phase: str, fields: dict[str, Any], leaves: bool
) -> None:
    at = with_gpus("", "gpu_off_bus", phase=phase)
    known = deployment(at, spec=spec(**fields))
    assert (leaves_lost_gpu(known, at) is not None) is leaves
