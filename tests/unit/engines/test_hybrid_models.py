"""Models whose layers keep states: what they claim on each server, and that vLLM can start with the blocks it gets."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide.start_command import start_payload
from controller.domain.instances import Revision
from controller.domain.model_facts import CachedLayers, ModelFacts, States, facts_to_json
from controller.domain.placement import Layout, Need, PlannedClaim, Share, need_from_json, need_to_json
from controller.domain.splits import Split
from controller.engines.estimates.llama_cpp_memory import Model, cache_bytes
from controller.engines.estimates.memory import MIB, Workload
from controller.engines.registry import engine_for
from controller.engines.servers.model_server import outside_parts
from controller.leader.analyses import ModelCache, _finish, analyse_now
from controller.runtime.child import ChildError
from schemas.placement_reasons import Reason
from support.builders.engine_specs import GIB, LLAMA, QUANTISED, asks, need, spec

# Qwen3.6-35B-A3B: 30 states of 8192 x 3 elements in 16 bits and 32 x 128 x 128 in 32; 10 layers with 2 heads of 256.
STATE = 8192 * 3 * 2 + 32 * 128 * 128 * 4
QWEN36 = replace(
    LLAMA, weight_bytes=70_000_000_000, dtypes={"BF16": 70_000_000_000}, parameters=35_000_000_000, layers=40,
    full_layers=10, uncached_layers=30, heads=16, kv_heads=2, head_dim=256, hidden_size=2048, intermediate_size=512,
    architectures=("Qwen3_5MoeForConditionalGeneration",), model_type="qwen3_5_moe", context_length=262_144,
    states=States(30, 8192 * 3, recurrent=32 * 128 * 128, kernel=3, recurrent_dtype="float32"),
)  # fmt: skip
MAMBA2 = replace(
    LLAMA, weight_bytes=14_570_160_128, dtypes={"BF16": 14_570_160_128}, parameters=7_285_080_064, layers=64,
    full_layers=0, uncached_layers=64, heads=128, kv_heads=None, head_dim=None, hidden_size=4096, vocab=32_768,
    intermediate_size=None, architectures=("Mamba2ForCausalLM",), model_type="mamba2",
    states=States(64, 8192 * 3, 8, 2 * 128 * 3, 8192 * 128, 3),
)  # fmt: skip
FALCON_H1 = replace(
    LLAMA, layers=72, full_layers=72, uncached_layers=0, heads=20, kv_heads=4, head_dim=128, hidden_size=5120,
    architectures=("FalconH1ForCausalLM",), states=States(72, 4096 * 3, 2, 2 * 256 * 3, 4096 * 256, 3),
)  # fmt: skip
KIMI = replace(
    LLAMA, layers=27, full_layers=7, uncached_layers=20, heads=32, kv_heads=32, head_dim=192, kv_lora_rank=512,
    qk_rope_head_dim=64, architectures=("KimiLinearForCausalLM",),
    states=States(20, 3 * 4096 * 3, recurrent=32 * 128 * 128, kernel=3, recurrent_dtype="float32"),
)  # fmt: skip
ALL = {"qwen3.6": QWEN36, "mamba2": MAMBA2, "falcon-h1": FALCON_H1, "kimi": KIMI}


def started(found: Need, layout: Layout, *, gpu_mib: int, **fields: Any) -> dict[str, str]:
    claims = [PlannedClaim(f"GPU-{n}", layout.memory_mib, 0, layout.exclusive, n) for n in range(layout.gpus)]
    order = start_payload(
        spec("vllm", **fields), deployment="d", deployment_uid="u", gpus=claims, layout=layout, gpu_mib=gpu_mib,
        need=need_from_json(need_to_json(found)),
    )  # fmt: skip
    return dict(pairwise(order["argv"]))


def block_of(facts: ModelFacts, split: Split, cache_bytes: int = 2) -> int:
    """Bytes of a block, by vLLM's rule in words of its own: a page of each layer of a group, as large as a state."""
    states = facts.states
    assert states is not None
    groups = states.groups if states.groups % split.tp == 0 else split.tp
    conv = (states.conv + groups * states.group_conv) // split.tp
    state = conv * 2 + states.recurrent // split.tp * (4 if states.recurrent_dtype else 2)
    attention = 0 if facts.layers is None else facts.layers - facts.uncached_layers
    if facts.kv_lora_rank is not None:
        entry, step = 576 * cache_bytes, 128
    else:
        entry, step = max(1, (facts.kv_heads or 0) // split.tp) * 2 * (facts.head_dim or 0) * cache_bytes, 16
    if not attention:
        return state * states.layers
    page = entry * step
    while page < state:
        page += entry * step
    fewer, more = sorted((attention, states.layers))
    return page * (more if more < 1.5 * fewer else fewer)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tp", [1, 2])
def test_a_claim_holds_the_states_and_vllm_gets_no_more_sequences_than_blocks(name: str, tp: int) -> None:
    """vLLM 0.28 does not start with `max_num_seqs` above the blocks of its cache, at graph capture."""
    facts = ALL[name]
    found = need("vllm", facts, parallel={"tp": tp})
    share = found.shares[0]
    block = block_of(facts, Split(tp, 1, 1))
    blocks = share.parts["cache"] * MIB // block
    assert blocks >= 16 * (1 if name == "mamba2" else 2)
    flags = started(found, Layout(tp, share.memory_mib, exclusive=False, tp=tp), gpu_mib=141 * GIB, parallel={"tp": tp})
    assert 16 <= int(flags["--max-num-seqs"]) == min(256, blocks)


def test_the_cache_of_qwen36_by_the_rule() -> None:
    """1056 tokens of 2048 bytes are the first multiple of 16 that holds a state; a group is ten layers, of four."""
    share = need("vllm", QWEN36).shares[0]
    block = 1056 * 2048 * 10
    assert share.block_bytes == block
    of_context, of_states = -(-8192 // 1056), 3 * 2  # with prefix caching, the state before each is kept too
    assert share.parts["cache"] == -(-(16 * (of_context + of_states) + 1) * block // MIB)
    alone = need("vllm", QWEN36, args={"enable-prefix-caching": False}).shares[0]
    assert alone.parts["cache"] == -(-(16 * (of_context + 3) + 1) * block // MIB)
    drafting = need("vllm", QWEN36, args={"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}})
    state = 8192 * 6 * 2 + 32 * 128 * 128 * 4  # of a convolution that keeps three more
    tokens = -(-state // 32768) * 16
    expected = 16 * (-(-8192 // tokens) + 3 * (2 + 3)) + 1
    assert drafting.shares[0].parts["cache"] == -(-expected * tokens * 2048 * 10 // MIB)


@pytest.mark.parametrize("name", ALL)
def test_on_a_whole_gpu_the_rest_of_it_holds_more_sequences(name: str) -> None:
    facts = replace(ALL[name], weight_bytes=2**33, dtypes={"BF16": 2**33})
    fields = {"resources": {"gpu_memory": "all", "gpus": 1}}
    found = need("vllm", facts, **fields)
    layout = Layout(1, found.shares[0].memory_mib, exclusive=True)
    flags = started(found, layout, gpu_mib=80 * GIB, **fields)
    fraction = float(flags["--gpu-memory-utilization"])
    own = found.shares[0].memory_mib - found.shares[0].parts["cache"] - sum(outside_parts(Split(1, 1, 1)).values())
    blocks = int((fraction * 80 * GIB - own) * MIB) // block_of(facts, Split(1, 1, 1))
    assert int(flags["--max-num-seqs"]) == min(256, blocks)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("given_gib", [20, 24, 80])
def test_stated_memory_bounds_the_sequences_by_its_blocks(name: str, given_gib: int) -> None:
    facts = replace(ALL[name], weight_bytes=2**33, dtypes={"BF16": 2**33})
    fields = {"resources": {"gpu_memory": f"{given_gib}GiB", "gpus": 1}}
    found = need("vllm", facts, **fields)
    (asked,) = asks("vllm", facts, **fields)
    (layout,) = asked.layouts
    flags = started(found, layout, gpu_mib=141 * GIB, **fields)
    share = found.shares[0]
    rest = given_gib * GIB - sum(size for part, size in share.parts.items() if part != "cache")
    blocks = rest * MIB // block_of(facts, Split(1, 1, 1))
    assert 1 <= int(flags["--max-num-seqs"]) == min(256, blocks)
    assert int(flags["--max-model-len"]) >= 1024


def test_stated_sequences_have_as_many_blocks() -> None:
    fields: dict[str, Any] = {"args": {"max-num-seqs": 200}, "resources": {"gpu_memory": "80GiB", "gpus": 1}}
    small = replace(QWEN36, weight_bytes=2**33, dtypes={"BF16": 2**33})
    share = need("vllm", small, **fields).shares[0]
    assert share.parts["cache"] * MIB >= 200 * share.block_bytes
    little = fields | {"resources": {"gpu_memory": "12GiB", "gpus": 1}}
    (asked,) = asks("vllm", small, **little)
    assert asked.refused == (Reason.NEED_GT_STATED,)


@given(
    name=st.sampled_from(sorted(ALL)), tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]),
    context=st.integers(1, 200_000), sequences=st.integers(1, 64),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_more_load_never_takes_less(name: str, tp: int, pp: int, context: int, sequences: int) -> None:
    def cache(context: int, sequences: int) -> int:
        args = {"max-model-len": context, "max-num-seqs": sequences}
        found: Share = need("vllm", ALL[name], args=args, parallel={"tp": tp, "pp": pp}).shares[0]
        assert found.parts["cache"] * MIB >= sequences * found.block_bytes
        return found.parts["cache"]

    assert cache(context, sequences) <= cache(context + 1, sequences)
    assert cache(context, sequences) <= cache(context, sequences + 1)


def test_models_without_states_start_as_before() -> None:
    found = need("vllm")
    assert found.shares[0].block_bytes == 0
    assert started(found, Layout(1, 40 * GIB, exclusive=False), gpu_mib=80 * GIB)["--max-num-seqs"] == "256"
    assert "--max-num-seqs" not in started(found, Layout(1, 40 * GIB, exclusive=True), gpu_mib=80 * GIB)


def test_sglang_has_a_pool_of_states() -> None:
    """Its share of the memory is 0.9 to 1 of keys and values; of each request it keeps several states."""
    pool = (5 * 16 + 1) * 30 * STATE
    tokens = 16 * 8192 * 10 * 2048
    found = need("sglang", QWEN36).shares[0].parts["cache"] * MIB
    assert found >= max(pool / 0.9 * 1.9, tokens * 1.9)
    assert found < 1.01 * max(pool / 0.9 * 1.9, tokens * 1.9)
    stated = need("sglang", QWEN36, args={"max-mamba-cache-size": 100}).shares[0].parts["cache"] * MIB
    assert stated == pytest.approx(tokens + 101 * 30 * STATE, rel=0.001)
    for args in ({"max-mamba-cache-size": "many"}, {"mamba-full-memory-ratio": "x"}):  # the server refuses these itself
        assert need("sglang", QWEN36, args=args).shares[0].parts["cache"] * MIB == found


@pytest.mark.parametrize(
    ("states", "mib"),
    [  # what users see, by ENGINES' own figures: MiB of each slot in 32 bits
        (States(72, 4096 * 3, 2, 2 * 256 * 3, 4096 * 256, 3), 292),  # Falcon-H1-34B
        (States(64, 8192 * 3, 8, 2 * 128 * 3, 8192 * 128, 3), 264),  # Mamba-Codestral
        (States(36, 8192 * 3, 1, 2 * 128 * 3, 8192 * 128, 3), 148),  # Granite-4.0-H-Small
        (States(36, 4096 * 3, 16, 2 * 128 * 3, 4096 * 128, 3), 76),  # Qwen3-Next
        (States(30, 4096 * 3, 16, 2 * 128 * 3, 4096 * 128, 3), 63),  # Qwen3.6-35B
        (States(23, 4096 * 3, 8, 2 * 128 * 3, 4096 * 128, 3), 48),  # Nemotron 3 Nano
        (States(20, 3 * 4096 * 3, recurrent=32 * 128 * 128, kernel=3), 43),  # Kimi-Linear
    ],
)
def test_llama_server_keeps_a_state_for_each_slot(states: States, mib: int) -> None:
    facts = replace(QUANTISED, layers=states.layers, full_layers=0, uncached_layers=states.layers, states=states)
    assert cache_bytes(facts, Workload(8192, 1, 2, 512, 1)) / MIB == pytest.approx(mib, abs=1)
    assert cache_bytes(facts, Workload(8192, 4, 2, 512, 4)) / MIB == pytest.approx(4 * mib, abs=4)


def test_a_vision_tower_has_a_buffer_on_llama_server() -> None:
    seen = need("llama-cpp", QUANTISED, args={"mmproj": "/mmproj.gguf"}).shares[0].parts
    assert 0.9 * GIB <= seen["images"] <= 2 * GIB
    assert "images" not in need("llama-cpp", QUANTISED).shares[0].parts
    kept = need("llama-cpp", QUANTISED, args={"mmproj": "/mmproj.gguf", "mmproj-offload": False})
    assert "images" not in kept.shares[0].parts
    assert Model(spec("llama-cpp", args={"mmproj": "/mmproj.gguf"}), QUANTISED, 0).host_mib(8192, 1) > 4096


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-cpp"])
def test_what_is_not_known_asks_for_the_memory(engine: str) -> None:
    facts = replace(QUANTISED if engine == "llama-cpp" else LLAMA, unknown="a layer of type 'new'")
    (asked,) = asks(engine, facts)
    assert (asked.layouts, asked.refused) == ((), (Reason.METADATA_UNKNOWN,))
    found = need(engine, facts)
    assert found.memory_mib is None
    assert "resources.gpu_memory" in found.notes[0]
    args = {"context-length": 4096, "max-running-requests": 4} if engine == "sglang" else {}
    (asked,) = asks(engine, facts, resources={"gpu_memory": "20GiB", "gpus": 1}, args=args)
    assert [layout.memory_mib for layout in asked.layouts] == [20 * GIB]
    assert asked.refused == ()


def test_an_unknown_need_is_an_error_that_names_the_fix() -> None:
    wanted = spec("vllm")
    result = facts_to_json(replace(LLAMA, unknown="a layer of type 'new'"))
    finished = _finish(Revision(1, wanted, "hash", datetime.now(UTC)), result)
    assert (finished.need, finished.retryable) == (None, False)
    assert "'new'" in finished.error
    assert "resources.gpu_memory" in finished.error
    stated = spec("vllm", resources={"gpu_memory": "20GiB", "gpus": 1})
    assert _finish(Revision(1, stated, "hash", datetime.now(UTC)), result).need is not None


async def test_a_plan_shows_an_unknown_need_as_unknown() -> None:
    wanted = spec("vllm")
    known = ModelCache(lambda: 0.0)
    analysis = engine_for(wanted).analysis(wanted)
    assert analysis is not None
    known.keep(analysis, facts_to_json(replace(LLAMA, elsewhere="text_model_id")))
    with pytest.raises(ChildError, match="text_model_id"):
        await analyse_now(known, wanted)


def test_weights_elsewhere_ask_for_the_memory_on_every_engine() -> None:
    ultravox = replace(LLAMA, elsewhere="text_model_id", weight_bytes=2**30, dtypes={"BF16": 2**30})
    for engine in ("vllm", "sglang", "transformers"):
        (asked,) = asks(engine, ultravox)
        assert (asked.layouts, asked.refused) == ((), (Reason.METADATA_UNKNOWN,)), engine
    for engine in ("vllm", "transformers"):
        (asked,) = asks(engine, ultravox, resources={"gpu_memory": "40GiB", "gpus": 1})
        assert [layout.memory_mib for layout in asked.layouts] == [40 * GIB], engine
    assert {one.refused for one in asks("auto", ultravox)} == {(Reason.METADATA_UNKNOWN,)}


def test_auto_still_takes_transformers_for_layers_that_are_not_known() -> None:
    found = asks("auto", replace(LLAMA, unknown="a layer of type 'new'"))
    assert [(one.engine, bool(one.layouts)) for one in found] == [("transformers", True)]


def test_a_pooling_model_keeps_one_sequence_or_none() -> None:
    ranks = replace(LLAMA, architectures=("Qwen3ForSequenceClassification",))
    one = 8192 * 131_072 // MIB
    assert need("vllm").shares[0].parts["cache"] == 16 * one
    for facts, args in (
        (ranks, {}), (replace(LLAMA, pooling=True), {}), (LLAMA, {"runner": "pooling"}), (LLAMA, {"convert": "embed"}),
        (LLAMA, {"task": "embed"}),
    ):  # fmt: skip
        assert need("vllm", facts, args=args).shares[0].parts["cache"] == one, (facts.architectures, args)
    assert need("sglang", args={"is-embedding": True}).shares[0].parts["cache"] == one
    assert need("vllm", replace(LLAMA, pooling=True), args={"runner": "generate"}).shares[0].parts["cache"] == 16 * one
    # Where tokens see later ones, nothing is kept at all.
    assert "cache" not in need("vllm", replace(LLAMA, pooling=True, bidirectional=True)).shares[0].parts
    assert need("vllm", replace(LLAMA, bidirectional=True)).shares[0].parts["cache"] == 16 * one


def test_whisper_keeps_what_its_encoder_heard() -> None:
    whisper = replace(
        LLAMA, architectures=("WhisperForConditionalGeneration",), layers=32, heads=20, kv_heads=20, head_dim=64,
        context_length=448,
        cached=(CachedLayers(32, 20, 128), CachedLayers(32, 20, 128, tokens=1500)),
    )  # fmt: skip
    assert need("vllm", whisper).shares[0].parts["cache"] == -(-16 * 32 * 20 * 128 * 2 * (448 + 1500) // MIB)
