"""Every line of advice, followed as a user would, makes the instance fit."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import event, given, note
from hypothesis import strategies as st

from controller.domain.admission import Holder
from controller.domain.placement import Decision, Need, Placed, PlannedClaim, Unplaced
from controller.engines.registry import engine_for, validate
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.advice import AdviceRequest, advise
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from support.builders.engine_specs import LLAMA
from support.builders.engine_specs import need as measured
from support.builders.fleet import GIB, Fleet
from support.profiles import examples

Manifest = dict[str, Any]
SIZES = st.sampled_from([8 * GIB, 16 * GIB - 37, 16 * GIB + 600, 24 * GIB, 24_564])
MODELS = st.sampled_from(["NVIDIA H100", "NVIDIA H100", "NVIDIA L40S", "Tesla T4"])


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, list[Holder]]:
    """Workers with GPUs of several kinds, and the instances that hold some of them."""
    fleet, holders = Fleet(), []
    for number in range(draw(st.integers(1, 6))):
        name = f"w{number}"
        fleet.add(
            name,
            draw(st.lists(SIZES, max_size=4)),
            host_memory=draw(st.sampled_from([4 * GIB - 11, 64 * GIB])),
            cpus=draw(st.sampled_from([3, 16])),
            labels={"zone": draw(st.sampled_from("ab"))},
            ready=draw(st.integers(0, 3)) > 0,
            schedulable=draw(st.integers(0, 3)) > 0,
        )
    for uuid, device in list(fleet.devices.items()):
        if device.kind == "gpu":
            fleet.set(uuid, model=draw(MODELS), reserved_mib=draw(st.sampled_from([0, 0, GIB])))
            fleet.set(uuid, compute_capability=draw(st.sampled_from([(9, 0), (9, 0), (7, 5)])))
            fleet.set(uuid, healthy=draw(st.integers(0, 9)) > 0, mig_mode=draw(st.integers(0, 9)) == 0)
            taken = draw(st.sampled_from([0, 0, 2 * GIB, 7 * GIB + 3, None]))
            if taken != 0:
                fleet.claim(uuid, taken)
                held = PlannedClaim(uuid, taken or device.memory_mib, 0, taken is None, 0)
                holders.append(Holder(f"on-{uuid}", 100, 0.0, frozenset({device.worker_id}), (held,)))
    return fleet, holders


def parts(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Manifest]:
    """Some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


PLACEMENT = parts(
    strategy=st.sampled_from(["pack", "spread"]),
    labels=st.sampled_from([{"zone": "a"}, {"zone": "c"}]),
    workers=st.sampled_from([["w0"], ["w0", "w1"], ["w1", "x"]]),
    gpus=st.sampled_from([["w0:0"], ["w0:0", "w0:1"], ["w0:0", "w1:0", "w2:0"]]),
    all_of=st.just(True),
)
RESOURCES = parts(
    gpus=st.integers(1, 4),
    gpu_memory=st.sampled_from(["6GiB", "20GiB", "all"]),
    exclusive=st.booleans(),
    max_workers=st.sampled_from([1, 1, 2, 3]),
    host_memory=st.sampled_from(["1GiB", "8GiB", "100GiB"]),
    cpus=st.sampled_from([1, 2.5, 8, 100]),
    gpu_models=st.sampled_from([["h100"], ["A100"]]),
    min_gpu_memory=st.sampled_from(["16GiB", "80GiB"]),
    compute_capability=st.sampled_from([">=8.0", "<8.0"]),
)
PARALLEL = st.one_of(st.just({}), parts(tp=st.integers(1, 4), pp=st.integers(1, 3), dp=st.integers(1, 2)))
NEEDS = st.builds(
    Need,
    st.sampled_from([None, 6 * GIB, 20 * GIB, 40 * GIB, 90 * GIB]),
    host_memory_mib=st.sampled_from([0, 2 * GIB]),
    parts=st.sampled_from([{}, {"weights": 5 * GIB, "cache": 15 * GIB}]),
    heads=st.sampled_from([None, 12, 28, 32]),
)


def manifests(**fixed: Any) -> st.SearchStrategy[Manifest]:
    made = st.fixed_dictionaries({"placement": PLACEMENT, "resources": RESOURCES, "parallel": PARALLEL})
    return made.map(lambda fields: fixed | fields)


def spec_of(manifest: Manifest) -> DeploymentSpec | None:
    """The spec as an apply takes it; None if it is refused."""
    try:
        spec = DeploymentSpec.model_validate(manifest)
        validate(spec)
    except ValueError:
        return None
    return spec


def decide(fleet: Fleet, spec: DeploymentSpec, need: Need) -> Decision:
    return place(fleet.inventory(), [asks_for(spec, need, engine_for(spec), instance="i", deployment_uid="d")])[0]


def advice(fleet: Fleet, holders: Sequence[Holder], spec: DeploymentSpec, need: Need) -> list[str]:
    """The advice where the instance does not fit."""
    decision = decide(fleet, spec, need)
    if isinstance(decision, Placed):
        return []
    assert isinstance(decision, Unplaced)
    request = AdviceRequest(spec, need, engine_for(spec), "d", decision.explain, holders)
    return advise(fleet.inventory(), request)


def follow(line: str, fleet: Fleet, holders: Sequence[Holder], manifest: Manifest) -> Iterator[tuple[Fleet, Manifest]]:
    """The fleet and the manifest after a user has done what the line says, at each end of a range that it names."""
    followed = False
    for pattern, act in _ACTS:
        if found := re.fullmatch(pattern, line):
            after = {part: dict(value) if isinstance(value, dict) else value for part, value in manifest.items()}
            changed = Fleet(dict(fleet.workers), dict(fleet.devices))
            act(found, changed, after, holders)
            event(pattern)
            followed = True
            yield changed, after
    assert followed, f"a line that no user can follow: {line!r}"


def less(found: re.Match[str], _f: Fleet, after: Manifest, _h: Sequence[Holder]) -> None:
    after["resources"][found[1]] = float(found[2]) if found[1] == "cpus" else found[2]


def more_workers(found: re.Match[str], _f: Fleet, after: Manifest, _h: Sequence[Holder]) -> None:
    after["resources"]["max_workers"] = int(found[1])


def other_degrees(found: re.Match[str], _f: Fleet, after: Manifest, _h: Sequence[Holder]) -> None:
    after["parallel"] = dict(zip(("tp", "pp", "dp"), map(int, found.groups()), strict=True))


def free_choice(found: re.Match[str], _f: Fleet, after: Manifest, _h: Sequence[Holder]) -> None:
    for part, name in re.findall(r"(\w+)\.(\w+)", found[1]):
        del after[part][name]


def uncordon(found: re.Match[str], fleet: Fleet, _a: Manifest, _h: Sequence[Holder]) -> None:
    for command in found[1].split("; "):
        name = command.removeprefix("gpuward uncordon ")
        fleet.workers[name] = replace(fleet.workers[name], schedulable=True)


def bring_back(found: re.Match[str], fleet: Fleet, _a: Manifest, _h: Sequence[Holder]) -> None:
    for name in found[1].split(", "):
        fleet.workers[name] = replace(fleet.workers[name], ready=True)


def end(found: re.Match[str], fleet: Fleet, _a: Manifest, holders: Sequence[Holder]) -> None:
    gone = found[1].split(", ")
    assert set(gone) <= {one.instance for one in holders}
    for claim in (claim for one in holders if one.instance in gone for claim in one.claims):
        was = fleet.devices[claim.device]
        fleet.set(
            claim.device, claims=was.claims - 1, claimed_mib=was.claimed_mib - claim.memory_mib,
            exclusive_claims=was.exclusive_claims - claim.exclusive,
        )  # fmt: skip


_ACTS = (
    (r"fits with (gpu_memory|host_memory|cpus)(?: <=|:) (\S+)(?: \(at least \S+\))?(?: on .+ GPUs?)?", less),
    (r"fits with (gpu_memory|host_memory) <= \S+ \(at least (\S+)\)(?: on .+ GPUs?)?", less),
    (r"fits with max_workers: (\d+)(?: on .*)?", more_workers),
    (r"fits with tp: (\d+), pp: (\d+), dp: (\d+)", other_degrees),
    (r"fits on .+ without (.+)", free_choice),
    (r"fits after: (.+)", uncordon),
    (r"fits once (.+) (?:is|are) ready", bring_back),
    (r"fits once (.+) (?:has|have) ended on .+", end),
)


@examples(150)
@given(fleets(), manifests(engine="simulated"), NEEDS)
def test_every_line_of_advice_leads_to_fits(made: tuple[Fleet, list[Holder]], manifest: Manifest, need: Need) -> None:
    fleet, holders = made
    spec = spec_of(manifest)
    for line in [] if spec is None else advice(fleet, holders, spec, need):
        note(line)
        for changed, after in follow(line, fleet, holders, manifest):
            followed = spec_of(after)
            assert followed is not None
            assert isinstance(decide(changed, followed, need), Placed)


@examples(40)
@given(fleets(), manifests(engine="vllm", model="hf:org/name"), st.sampled_from([5, 20, 40]))
def test_it_does_with_the_need_that_the_engine_measures_afterwards(
    made: tuple[Fleet, list[Holder]], manifest: Manifest, gib: int
) -> None:
    fleet, holders = made
    facts = replace(LLAMA, weight_bytes=gib * 2**30, dtypes={"BF16": gib * 2**30}, parameters=gib * 2**29)
    spec = spec_of(manifest)
    if spec is None:
        return

    def need(of: Manifest) -> Need:
        return measured(**({"facts": facts} | of))

    for line in advice(fleet, holders, spec, need(manifest)):
        note(line)
        for changed, after in follow(line, fleet, holders, manifest):
            followed = spec_of(after)
            assert followed is not None
            assert isinstance(decide(changed, followed, need(after)), Placed)
