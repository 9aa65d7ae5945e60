"""A stated `gpu_memory`: facts still count, degrees follow from the GPUs, and nothing outgrows the claim."""

import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from controller.decide.instances.decide import Finished
from controller.decide.start_command import start_payload
from controller.domain.instances import Revision
from controller.domain.model_facts import ModelFacts, facts_to_json
from controller.domain.placement import Ask, Layout, Need, Placed, PlannedClaim
from controller.domain.splits import Split
from controller.engines.estimates.memory import Workload, cache_per_gpu
from controller.engines.registry import engine_for, validate
from controller.engines.servers.model_server import outside_parts
from controller.leader.analyses import _finish
from controller.runtime.child import ChildError
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.advice import AdviceRequest, advise
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason
from support.builders.engine_specs import BERT, GIB, LLAMA, QUANTISED, asks, need, spec
from support.builders.fleet import Fleet

TWO = {"gpus": 2, "gpu_memory": "20GiB"}
ENGINES = ("vllm", "sglang", "llama-cpp")


def started(wanted: DeploymentSpec, found: Need, layout: Layout, *, gpu_mib: int) -> dict[str, str]:
    """The flags with which a process starts on its claims."""
    claims = [PlannedClaim(f"GPU-{n}", layout.memory_mib, 0, layout.exclusive, n) for n in range(layout.gpus)]
    order = start_payload(
        wanted, deployment="d", deployment_uid="u", gpus=claims, layout=layout, gpu_mib=gpu_mib, need=found
    )  # fmt: skip
    return dict(pairwise(order["argv"]))


def asked_of(wanted: DeploymentSpec, found: Need) -> Ask:
    return asks_for(wanted, found, engine_for(wanted), instance="i", deployment_uid="d")


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--tensor-parallel-size"), ("sglang", "--tp-size")])
@pytest.mark.parametrize("read", [True, False])
def test_two_gpus_of_stated_memory_start_with_two(engine: str, flag: str, read: bool) -> None:
    args = {"context-length": 4096, "max-running-requests": 4} if engine == "sglang" and not read else {}
    wanted = spec(engine, resources=TWO, args=args)
    found = need(engine, resources=TWO) if read else engine_for(wanted).assumed(wanted)
    assert found is not None
    (layout,) = asked_of(wanted, found).layouts
    assert (layout.gpus, layout.tp, layout.memory_mib) == (2, 2, 20 * GIB)
    assert started(wanted, found, layout, gpu_mib=80 * GIB)[flag] == "2"
    assert read or "assumed: tp 2" in found.notes[0]


def test_a_need_that_an_earlier_version_stored_gets_its_degrees_too() -> None:
    wanted = spec("vllm", resources=TWO)
    (layout,) = asked_of(wanted, Need(None, notes=("memory as stated in the spec",))).layouts
    assert (layout.gpus, layout.tp) == (2, 2)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_the_model_demands_is_checked_all_the_same(engine: str) -> None:
    given = {"gpu_memory": "40GiB", "gpus": 3}
    (asked,) = asks(engine, resources=given)
    assert asked.layouts == ()
    assert asked.refused == (Reason.HEADS_INDIVISIBLE,)
    assert asked.compatibility.min_compute_capability == (8, 0)  # bfloat16
    (asked,) = asks(engine, replace(LLAMA, architectures=("T5ForConditionalGeneration",)), resources=TWO)
    assert asked.refused == (Reason.ENGINE_UNSUPPORTED,)


@pytest.mark.parametrize("engine", [*ENGINES, "transformers"])
def test_weights_that_exceed_the_stated_memory_are_refused_with_the_figure(engine: str) -> None:
    given = {"gpu_memory": "3GiB", "gpus": 1}
    facts = QUANTISED if engine == "llama-cpp" else LLAMA
    (asked,) = asks(engine, facts, resources=given)
    assert asked.layouts == ()
    assert asked.refused == (Reason.NEED_GT_STATED,)
    least = asked.tried[0][0].memory_mib
    weights = mib_of(facts)
    assert least > weights
    found = need(engine, facts, resources=given)
    assert f"resources.gpu_memory is 3.00 GiB, the model needs {least / 1024:.2f} GiB on 1 GPU" in found.notes
    # What the refusal names is enough.
    (asked,) = asks(engine, facts, resources={"gpu_memory": f"{least}MiB", "gpus": 1})
    assert [one.memory_mib for one in asked.layouts] == [least]


def mib_of(facts: ModelFacts) -> int:
    return facts.weight_bytes // 2**20


def test_more_gpus_are_taken_where_one_of_the_stated_memory_is_too_small() -> None:
    (asked,) = asks("vllm", resources={"gpu_memory": "12GiB"})
    assert [(one.gpus, one.tp) for one in asked.layouts][:2] == [(2, 2), (4, 4)]
    assert (asked.tried[0][0].gpus, asked.tried[0][1]) == (1, Reason.NEED_GT_STATED)


def test_auto_leaves_out_engines_for_which_the_stated_memory_is_too_small() -> None:
    chain = asks("auto", resources={"gpu_memory": "20GiB"})
    assert [one.engine for one in chain] == ["vllm", "sglang", "transformers"]
    wanted = spec("auto", resources={"gpu_memory": "20GiB"})
    assumed = engine_for(wanted).assumed(wanted)
    assert assumed is not None
    assert [name for name, _ in assumed.by_engine] == ["vllm", "transformers"]  # nothing would bound SGLang's cache


def test_context_and_sequences_are_bounded_to_what_the_memory_leaves() -> None:
    for engine, names in (
        ("vllm", ("--max-model-len", "--max-num-seqs")),
        ("sglang", ("--context-length", "--max-running-requests")),
        ("llama-cpp", ("--ctx-size", "--parallel")),
    ):
        facts = QUANTISED if engine == "llama-cpp" else LLAMA
        lines = []
        for memory in ("8GiB", "12GiB") if engine == "llama-cpp" else ("18GiB", "24GiB"):
            wanted = spec(engine, resources={"gpu_memory": memory, "gpus": 1})
            found = need(engine, facts, resources={"gpu_memory": memory, "gpus": 1})
            (layout,) = asked_of(wanted, found).layouts
            flags = started(wanted, found, layout, gpu_mib=80 * GIB)
            lines.append([int(flags[name]) for name in names])
            assert need(engine, facts, resources={"gpu_memory": memory, "gpus": 1}).context_of(layout) is not None
        assert lines[0][0] <= lines[1][0], engine
        assert lines[0] != lines[1], engine


def test_a_stated_context_is_kept_and_refused_where_it_does_not_fit() -> None:
    (asked,) = asks("vllm", resources={"gpu_memory": "20GiB", "gpus": 1}, args={"max-model-len": 16_384})
    assert asked.layouts
    (asked,) = asks("vllm", resources={"gpu_memory": "20GiB", "gpus": 1}, args={"max-model-len": 65_536})
    assert (asked.layouts, asked.refused) == ((), (Reason.NEED_GT_STATED,))


def test_whole_gpus_of_a_stated_number_start_without_facts() -> None:
    wanted = spec("vllm", resources={"gpus": 4, "gpu_memory": "all"})
    found = engine_for(wanted).assumed(wanted)
    assert found is not None
    (layout,) = asked_of(wanted, found).layouts
    assert (layout.gpus, layout.tp, layout.exclusive) == (4, 4, True)
    undecided = spec("vllm", resources={"gpu_memory": "all"})
    assert engine_for(undecided).assumed(undecided) is None
    stated = spec("vllm", parallel={"tp": 2, "pp": 2}, resources={"gpu_memory": "16GiB"})
    found = engine_for(stated).assumed(stated)
    assert found is not None
    assert [(one.tp, one.pp) for one in asked_of(stated, found).layouts] == [(2, 2)]


@pytest.mark.parametrize(
    ("engine", "args", "images"),
    [
        ("vllm", {}, True),
        ("vllm", {"limit-mm-per-prompt": '{"image": 0, "video": 0}'}, False),
        ("vllm", {"limit-mm-per-prompt": '{"image": {"count": 0}, "video": 0}'}, False),
        ("vllm", {"limit-mm-per-prompt": "image=0,video=0"}, False),
        ("vllm", {"limit-mm-per-prompt": '{"image": 0}'}, True),  # videos go through the tower too
        ("vllm", {"limit-mm-per-prompt": '{"image": 1, "video": 0}'}, True),
        ("vllm", {"language-model-only": True}, False),
        ("vllm", {"language-model-only": False}, True),
        ("sglang", {"language-only": True}, False),
        ("sglang", {"enable-multimodal": False}, False),
    ],
)
def test_flags_that_leave_out_the_tower_are_read(engine: str, args: dict[str, Any], images: bool) -> None:
    seeing = replace(LLAMA, vision=True, vision_heads=6)
    found = need(engine, seeing, args=args)
    assert ("images" in found.shares[0].parts) is images
    assert (found.vision_heads is not None) is images


def test_a_server_of_the_tower_alone_keeps_no_cache() -> None:
    assert "cache" not in need("vllm", replace(LLAMA, vision=True), args={"mm-encoder-only": True}).shares[0].parts


def random_model(chance: random.Random, engine: str) -> ModelFacts:
    if chance.random() < 0.1 and engine != "llama-cpp":
        return BERT
    layers, heads = chance.choice([12, 24, 32, 48, 80]), chance.choice([8, 16, 25, 32, 40, 64])
    hidden = heads * 128
    parameters = layers * 12 * hidden * hidden
    return replace(
        QUANTISED if engine == "llama-cpp" else LLAMA,
        layers=layers, heads=heads, kv_heads=chance.choice([one for one in (1, 2, 4, 8, heads) if heads % one == 0]),
        hidden_size=hidden, intermediate_size=hidden * 3, parameters=parameters,
        weight_bytes=parameters // 2 if engine == "llama-cpp" else parameters * 2,
        dtypes={"Q4_K": parameters // 2} if engine == "llama-cpp" else {"BF16": parameters * 2},
        sliding_window=chance.choice([None, 1024]), full_layers=layers // 4, vision=chance.random() < 0.2,
        context_length=chance.choice([512, 4096, 131_072]),
    )  # fmt: skip


def random_spec(chance: random.Random, engine: str) -> DeploymentSpec:
    resources: dict[str, Any] = {"gpu_memory": f"{chance.randint(2, 79)}GiB"}
    if chance.random() < 0.7:
        resources["gpus"] = chance.choice([1, 2, 3, 4, 8])
    context, sequences = {
        "vllm": ("max-model-len", "max-num-seqs"),
        "sglang": ("context-length", "max-running-requests"),
        "llama-cpp": ("ctx-size", "parallel"),
    }[engine]
    args: dict[str, Any] = {}
    if chance.random() < 0.3:
        args[context] = chance.choice([2048, 8192, 32_768])
    if chance.random() < 0.3:
        args[sequences] = chance.choice([1, 4, 64])
    return spec(engine, resources=resources, args=args)


def taken_mib(
    engine: str, wanted: DeploymentSpec, facts: ModelFacts, found: Need, layout: Layout, gpu_mib: int
) -> float:
    """The most that the command line lets the engine take of one GPU."""
    flags = started(wanted, found, layout, gpu_mib=gpu_mib)
    share = found.share_of(layout)
    assert share is not None
    without_cache = sum(size for part, size in share.parts.items() if part != "cache")
    if engine == "vllm":
        split = Split(layout.tp, layout.pp, layout.dp)
        own = float(flags["--gpu-memory-utilization"]) * gpu_mib
        alone = cache_of(facts, split, int(flags.get("--max-model-len", 1)), 1)
        assert own >= without_cache - sum(outside_parts(split).values()) + alone - 8, "it would not start"
        return own + sum(outside_parts(split).values())
    if engine == "sglang":
        whole = replace(facts, sliding_window=None)  # it keeps every token
        tokens = int(flags.get("--max-total-tokens", 1))
        return without_cache + cache_of(whole, Split(layout.tp, layout.pp, layout.dp), tokens, 1)
    slots = int(flags["--parallel"])
    each = max(int(flags["--ctx-size"]) // slots, 1)
    workload = Workload(each, slots, 2.0, 512, slots, slots * (512 + 256))
    return without_cache + (cache_per_gpu(facts, Split(1, layout.gpus, 1), workload) or 0) / 2**20


def cache_of(facts: ModelFacts, split: Split, context: int, sequences: int) -> float:
    workload = Workload(context, sequences, 2, 8192, 256, 8192, window_groups=True)
    return (cache_per_gpu(facts, split, workload) or 0) / 2**20


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_line_never_takes_more_than_the_claim(engine: str) -> None:
    chance = random.Random(11)  # noqa: S311 - cases, not secrets
    placed = refused = 0
    for _ in range(300):
        facts, wanted = random_model(chance, engine), random_spec(chance, engine)
        validate(wanted)
        found = engine_for(wanted).need(wanted, facts_to_json(facts))
        asked, given = asked_of(wanted, found), wanted.resources.gpu_memory
        assert isinstance(given, int)
        for layout in asked.layouts:
            placed += 1
            assert layout.tp * layout.pp * layout.dp == layout.gpus
            assert wanted.gpus_stated in (None, layout.gpus)
            assert layout.memory_mib == given
            gpu_mib = max(given, chance.choice([24, 40, 80]) * GIB)
            assert taken_mib(engine, wanted, facts, found, layout, gpu_mib) <= given + 16, (facts, wanted, layout)
        for layout, reason in asked.tried:
            refused += reason is Reason.NEED_GT_STATED
            assert reason is not Reason.NEED_GT_STATED or layout.memory_mib > given
    assert placed > 100
    assert refused > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_advice_about_memory_is_true_when_followed(engine: str) -> None:
    """With the model read anew: it fits, and the claim holds at least one sequence."""
    chance = random.Random(7)  # noqa: S311 - cases, not secrets
    followed = 0
    for _ in range(60):
        facts, wanted = random_model(chance, engine), random_spec(chance, engine)
        if chance.random() < 0.5:
            wanted = wanted.model_copy(update={"resources": wanted.resources.model_copy(update={"gpu_memory": "auto"})})
        inventory = Fleet().add("a", [chance.choice([16, 24, 80]) * GIB] * chance.choice([1, 2, 4])).inventory()
        found = engine_for(wanted).need(wanted, facts_to_json(facts))
        (decision,) = place(inventory, [asked_of(wanted, found)])
        if isinstance(decision, Placed):
            continue
        lines = advise(inventory, AdviceRequest(wanted, found, engine_for(wanted), "d", decision.explain))
        for size in (re.search(r"gpu_memory(?:: | <= )([0-9.]+GiB)", line) for line in lines):
            if size is None:
                continue
            fields = wanted.resources.model_dump() | {"gpu_memory": size[1]}
            changed = spec(engine, args=wanted.args, resources=fields)
            again = engine_for(changed).need(changed, facts_to_json(facts))
            (placed,) = place(inventory, [asked_of(changed, again)])
            assert isinstance(placed, Placed), (wanted, lines)
            share = again.share_of(placed.layout)
            assert share is not None
            assert share.least_mib <= share.memory_mib == placed.layout.memory_mib
            followed += 1
    assert followed > 3


def test_the_analysis_that_fails_leaves_a_need_only_where_enough_is_stated() -> None:
    def finished(**resources: Any) -> Finished:
        wanted = spec("vllm", resources=resources)
        revision = Revision(1, wanted, "h", datetime.now(UTC))
        return _finish(revision, ChildError("MetadataError", "gated", retryable=False))

    found = finished(**TWO)
    assert found.need is not None
    assert found.need.notes[-1] == "the model was not read: gated"
    assert finished(gpus=2).error.startswith("gated; then stop and start")
