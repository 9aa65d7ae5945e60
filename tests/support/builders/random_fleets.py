"""Random fleets and asks for properties of placement."""

from typing import Any

from hypothesis import strategies as st

from controller.domain.placement import Ask, Compatibility, Layout
from schemas.manifest.resources import CapabilityBound
from support.builders.fleet import GIB, Fleet

SIZES = st.sampled_from([8 * GIB, 16 * GIB, 16 * GIB + 600, 17 * GIB, 24 * GIB])
PLATFORM = Compatibility(os=frozenset({"linux"}), min_driver=(525,), min_compute_capability=(7, 0))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    fleet = Fleet()
    for number in range(draw(st.integers(0, 4))):
        name = f"w{number}"
        fleet.add(
            name,
            draw(st.lists(SIZES, max_size=4)),
            os=draw(st.sampled_from(["linux", "linux", "darwin"])),
            driver=draw(st.sampled_from(["580.1", "580.1", "470.2", None])),
            host_memory=draw(st.sampled_from([4 * GIB, 64 * GIB])),
            cpus=draw(st.sampled_from([1, 8])),
            labels={"zone": draw(st.sampled_from("ab"))},
            ready=draw(st.integers(0, 5)) > 0,
            schedulable=draw(st.integers(0, 5)) > 0,
        )
    for uuid, device in list(fleet.devices.items()):
        if device.kind == "gpu":
            claimed = draw(st.sampled_from([0, 0, 0, 2 * GIB, device.memory_mib, None]))
            if claimed != 0:
                fleet.claim(uuid, claimed)
            fleet.set(uuid, healthy=draw(st.integers(0, 7)) > 0, mig_mode=draw(st.integers(0, 7)) == 0)
            fleet.set(uuid, compute_capability=draw(st.sampled_from([(9, 0), (9, 0), (6, 1), None])))
            fleet.set(uuid, model=draw(st.sampled_from("HHHA")), vendor=draw(st.sampled_from(["nvidia"] * 4 + ["amd"])))
            fleet.set(uuid, reserved_mib=draw(st.sampled_from([0, 0, GIB])))
            fleet.set(uuid, foreign_mib=draw(st.sampled_from([0, 0, 0, 3 * GIB])))
    return fleet


def layout(each: int, workers: int, memory: int, exclusive: bool) -> Layout:
    return Layout(each * workers, memory * GIB, exclusive, workers)


# Several layouts on GPUs, or one without: an instance that can run without a GPU asks for none.
ON_GPUS = st.builds(layout, st.integers(1, 3), st.sampled_from([1, 1, 1, 2, 3]), st.integers(0, 26), st.booleans())
LAYOUTS = st.one_of(st.just((Layout(0, 0, False),)), st.lists(ON_GPUS, min_size=1, max_size=3, unique=True).map(tuple))

SHAPES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "layouts": LAYOUTS,
        "strategy": st.sampled_from(["pack", "spread", "least_fragmentation"]),
        "host_memory_mib": st.sampled_from([0, GIB]),
        "cpu_milli": st.sampled_from([0, 400]),
        "deployment_uid": st.sampled_from(["d", "e"]),
        "labels": st.sampled_from([{}, {}, {"zone": "a"}]),
        "workers": st.sampled_from([(), (), (), ("w0",), ("w0", "w1"), ("w9",)]),
        "gpus": st.sampled_from([(), (), (), ("w0:0",), ("w0/0", "w0:1"), ("w1:7",), ("w0:0", "w1:1", "w2:0", "x:0")]),
        "all_gpus": st.booleans(),
        "all_workers": st.booleans(),
        "gpu_models": st.sampled_from([(), (), ("h",)]),
        "min_gpu_mib": st.sampled_from([0, 0, 16 * GIB]),
        "capability_bounds": st.sampled_from([(), (), (CapabilityBound(">=", (8, 0)),)]),
        "compatibility": st.sampled_from([Compatibility(), PLATFORM]),
        "avoid_workers": st.sampled_from([frozenset(), frozenset({"id-w0"})]),
    }
)


def _as_specs_ask(shape: dict[str, Any]) -> dict[str, Any]:
    """Only of what is named can all be wanted."""
    all_gpus, all_workers = shape["all_gpus"] and bool(shape["gpus"]), shape["all_workers"] and bool(shape["workers"])
    return {**shape, "all_gpus": all_gpus, "all_workers": all_workers}


@st.composite
def asks(draw: st.DrawFn) -> list[Ask]:
    """Series of equal asks, as from the replicas of several deployments."""
    runs = draw(st.lists(st.tuples(SHAPES, st.integers(1, 6)), min_size=1, max_size=4))
    shapes = [_as_specs_ask(shape) for shape, count in runs for _ in range(count)]
    return [Ask(instance=f"i{n}", **shape) for n, shape in enumerate(shapes)]
