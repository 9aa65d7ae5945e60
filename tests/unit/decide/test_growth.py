"""What a decision costs grows as the number of replicas does, and not as its square: a step holds the event loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.decide.adoption import plan_adoption
from controller.decide.instances.decide import decide
from controller.decide.policies.actions import decide_policy
from controller.domain.adoption import DeviceRoom, HeldClaim, OrphanProcess
from controller.domain.instances import DeploymentSnapshot, InstanceState, StoredRelocation
from controller.domain.placement import Layout, PlannedClaim
from controller.domain.policies import EffectivePolicy, GpuClaim, PolicySnapshot, WatchedInstance
from controller.domain.restart_delays import RestartSettings
from controller.domain.start_receipts import StartReceipt
from support.builders import telemetry
from support.builders.facts import NOW, deployment, host, instance, intent, process, spec, start
from support.growth import assert_in_line

FEW, TIMES = 300, 10
SLACK = 2.5  # what is quadratic reaches TIMES² as it grows; what was mended was at 2.8 to 10 TIMES
RUNNING, ENDED = (process("running"),), (process("exited", "exit", 1),)
DEAD = host(phase="lost", confirmed_dead=True)


def replicas(number: int, phase: str = "running", **fields: Any) -> list[InstanceState]:
    """Each with a number of its own for its commands."""
    made = [instance(f"i{n:05}", phase, **fields) for n in range(number)]
    return [replace(i, commands=tuple(replace(c, id=n) for c in i.commands)) for n, i in enumerate(made)]


def substituted(number: int) -> list[InstanceState]:
    """Unreachable instances, and as many that replace them and have claims."""
    others = replicas(number, processes=RUNNING)
    return [*replicas(number, "unreachable"), *(replace(i, id=f"s{i.id}", replaces=i.id) for i in others)]


def rolling_out(number: int, phase: str) -> list[InstanceState]:
    """All of the old revision and a quarter of the new one."""
    newer = replicas(number // 4, phase, revision=2)
    return [*replicas(number, processes=RUNNING), *(replace(i, id=f"n{i.id}") for i in newer)]


def relocating(number: int) -> DeploymentSnapshot:
    """Each is relocated, and its replacement starts."""
    old = replicas(number, processes=RUNNING)
    new = [replace(i, id=f"r{i.id}") for i in replicas(number, "starting")]
    moves = tuple(StoredRelocation(n, i.id, 1, "w2", f"r{i.id}") for n, i in enumerate(old))
    facts: DeploymentSnapshot = deployment(*old, *new, spec=spec(replicas=number), relocations=moves)
    return facts


SITUATIONS: dict[str, Callable[[int], DeploymentSnapshot]] = {
    "creates": lambda n: deployment(spec=spec(replicas=n)),
    "waits-for-a-need": lambda n: deployment(*replicas(n, "analyzing"), spec=spec(replicas=n), need=None),
    "pending": lambda n: deployment(*replicas(n, "pending"), spec=spec(replicas=n)),
    "starting": lambda n: deployment(*replicas(n, "starting", processes=RUNNING), spec=spec(replicas=n)),
    "refused": lambda n: deployment(
        *replicas(n, "scheduled", commands=(start("refused", code="disk"),)), spec=spec(replicas=n)
    ),
    "ended": lambda n: deployment(*replicas(n, processes=ENDED), spec=spec(replicas=n)),
    "ended-for-good": lambda n: deployment(*replicas(n, processes=ENDED), spec=spec(replicas=n, restart="never")),
    "restarts": lambda n: deployment(*replicas(n, "backoff", processes=ENDED), spec=spec(replicas=n)),
    "host-silent": lambda n: deployment(*replicas(n), spec=spec(replicas=n), hosts=(host(phase="unreachable"),)),
    "host-lost": lambda n: deployment(
        *replicas(n, "unreachable"), spec=spec(replicas=n), hosts=(host(phase="lost"),)
    ),
    "host-dead": lambda n: deployment(*replicas(n, "unreachable"), spec=spec(replicas=n), hosts=(DEAD,)),
    "substituted": lambda n: deployment(*substituted(n), spec=spec(replicas=n), hosts=(host(phase="lost"),)),
    "drained": lambda n: deployment(*replicas(n), spec=spec(replicas=n), hosts=(host(draining=True),)),
    "scaled-down": lambda n: deployment(*replicas(n, processes=RUNNING), spec=spec(replicas=n // 2)),
    "capped": lambda n: deployment(*replicas(n), spec=spec(replicas=n), intents=(intent(max_replicas=n // 3),)),
    "rolls-out": lambda n: deployment(*rolling_out(n, "starting"), spec=spec(replicas=n), revision=2),
    "rolls-on": lambda n: deployment(*rolling_out(n, "running"), spec=spec(replicas=n), revision=2),
    "relocated": relocating,
    "deleted": lambda n: deployment(*replicas(n, processes=RUNNING), deleted_at=NOW),
    "deleted-before-its-start": lambda n: deployment(
        *replicas(n, "scheduled", commands=(start("open", sent=False),)), deleted_at=NOW
    ),
    "deleted-and-ended": lambda n: deployment(*replicas(n, "stopping", processes=ENDED), deleted_at=NOW),
}  # fmt: skip


def grows_in_line(of: Callable[[int], Callable[[], object]]) -> None:
    assert_in_line(of, FEW, times=TIMES, slack=SLACK)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_deployments_step(situation: str) -> None:
    def of(number: int) -> Callable[[], object]:
        facts, settings = SITUATIONS[situation](number), RestartSettings()
        # What is looked up once is not kept from try to try.
        return lambda: decide(replace(facts), settings)

    grows_in_line(of)


@pytest.mark.parametrize("samples", [telemetry.steady(0), telemetry.steady(100)], ids=["idle", "busy"])
def test_a_policys_step(samples: dict[int, float]) -> None:
    def of(number: int) -> Callable[[], object]:
        policy = EffectivePolicy("rule", "p-1", 3, telemetry.policy(600, 50))
        names = [f"i{n:05}" for n in range(number)]
        claims = {n: (GpuClaim(f"GPU-{n}", "w-1", "gpu-1", exclusive=True, memory_mib=8, device_mib=8),) for n in names}
        since = telemetry.NOW - 7200
        watched = tuple(WatchedInstance(n, 1, "running", since, claims[n]) for n in names)
        facts = PolicySnapshot("u", "d", 5, 9, False, spec(replicas=number), policy, (), watched, False, telemetry.NOW)
        gpus = {name: telemetry.use(telemetry.gpu(f"GPU-{name}", samples)) for name in names}
        uses = {name: replace(use, phase="running", running_since=since) for name, use in gpus.items()}
        return lambda: decide_policy(facts, uses)

    grows_in_line(of)


@pytest.mark.parametrize("known", ["none", "pending", "running", "stopping"])
@pytest.mark.parametrize("wanted", ["one", "all"])
def test_taking_back_what_runs(known: str, wanted: str) -> None:
    def of(number: int) -> Callable[[], object]:
        ledger = [] if known == "none" else replicas(number, known)
        ledger = [replace(i, claims=i.claims[:1]) for i in ledger]
        facts = deployment(*ledger, uid="u", spec=spec(replicas=number if wanted == "all" else 1))
        rooms = {
            claim.device: DeviceRoom("w1", True, True, 2048, 0, 0, (HeldClaim(i.id, 1024, 0, False),))
            for i in ledger for claim in i.claims
        }  # fmt: skip
        rooms |= {f"GPU-n{n}": DeviceRoom("w1", True, True, 2048, 0, 0, ()) for n in range(number)}
        found = [OrphanProcess(receipt(n), "w1", True, {"state": "running"}) for n in range(number)]
        owners = {i.id: "u" for i in ledger}
        return lambda: plan_adoption(found, {"u": facts}, rooms, owners=owners, reporting={"w1"})

    grows_in_line(of)


def receipt(number: int) -> StartReceipt:
    claims = (PlannedClaim(f"GPU-n{number}", 1024, 0, False, 0, 0),)
    return StartReceipt("w1", f"n{number}", 1, 0, "u", 1, NOW, "", Layout(1, 0, exclusive=False, workers=1), claims)
