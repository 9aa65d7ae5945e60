"""vLLM and SGLang: their needs, and what their tables refuse."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controller.decide.start_command import start_payload
from controller.domain.model_facts import ModelFacts, Quantization
from controller.domain.placement import PlannedClaim, need_view
from controller.engines.registry import engine_for
from schemas.placement_reasons import Reason
from support.builders.engine_specs import BERT, GIB, LLAMA, ONE, QUANTISED, asks, need, process, spec


def test_the_need_is_measured_for_each_split_and_falls_back_to_one_sequence() -> None:
    found = need("vllm")
    by_gpus = [(share.gpus, share.parts["cache"]) for share in found.shares]
    assert by_gpus[:4] == [(1, 16 * GIB), (2, 8 * GIB), (3, 6 * GIB), (4, 4 * GIB)]
    assert (1, GIB) in by_gpus
    assert found.shares[0].memory_mib == sum(found.shares[0].parts.values())
    assert (found.heads, found.kv_heads, found.vocab) == (32, 8, 128_256)
    assert (found.context, found.sequences) == (8192, 16)
    assert "by default" in found.notes[0]
    (asked,) = asks("vllm")
    assert [(one.tp, one.memory_mib > 30 * GIB) for one in asked.layouts][:2] == [(1, True), (2, False)]
    assert {one.tp for one, _ in asked.tried} == {3, 5, 6, 7}


def test_an_instance_placed_for_one_sequence_is_started_and_shown_for_one() -> None:
    """With the tokens of sixteen sequences SGLang's cache would grow into the claims of others."""
    found, (asked,) = need("sglang"), asks("sglang")
    most, least = (next(one for one in turn if one.gpus == 1) for turn in (asked.layouts, reversed(asked.layouts)))
    assert most.memory_mib > least.memory_mib + 14 * GIB
    for layout, sequences in ((most, 16), (least, 1)):
        claim = PlannedClaim("GPU-1", layout.memory_mib, 0, exclusive=False, position=0)
        order = start_payload(
            spec("sglang"),
            deployment="d",
            deployment_uid="u",
            gpus=[claim],
            layout=layout,
            gpu_mib=80 * GIB,
            need=found,
        )
        flags = dict(pairwise(order["argv"]))
        assert flags["--max-total-tokens"] == str(8192 * sequences)
        assert need_view(found, spec("sglang").resources, None, layout).sequences == sequences


def test_only_a_stated_claim_of_host_memory_is_a_limit() -> None:
    for stated, limit in (("auto", None), ("16GiB", 16 * GIB)):
        wanted = spec("vllm", resources={"gpus": 1, "host_memory": stated})
        claim = PlannedClaim("GPU-1", 8 * GIB, 0, exclusive=False, position=0)
        order = start_payload(wanted, deployment="d", deployment_uid="u", gpus=[claim])
        assert order["host_memory_mib"] == limit


def test_the_need_is_for_stated_context_and_concurrency() -> None:
    found = need("vllm", args={"max-model-len": "32K", "max-num-seqs": 4})
    assert found.shares[0].parts["cache"] == 16 * GIB
    assert len({(one.tp, one.pp) for one in found.shares}) == len(found.shares)  # no second round for fewer
    assert (found.context, found.sequences) == (32_768, 4)
    halved = need("vllm", args={"kv-cache-dtype": "fp8"})
    assert halved.shares[0].parts["cache"] == 8 * GIB
    assert need("sglang", args={"context-length": 4096, "max-running-requests": 16}).shares[0].parts["cache"] == 8 * GIB


def test_a_window_counts_where_the_server_uses_it() -> None:
    windowed = replace(LLAMA, sliding_window=1024, full_layers=8)

    def cached(engine: str, **args: Any) -> int:
        return need(engine, windowed, args=args).shares[0].parts["cache"]

    per_token = 4096 / 2**20  # of one layer, MiB
    assert cached("vllm") == (8 * 16 * 8192 + 24 * (16 * 1024 + 8192)) * per_token
    assert cached("vllm", **{"max-num-batched-tokens": 2048}) == (8 * 16 * 8192 + 24 * (16 * 1024 + 2048)) * per_token
    assert cached("vllm", **{"disable-hybrid-kv-cache-manager": True}) == 16 * GIB
    assert cached("sglang") == 16 * GIB


def test_only_stated_degrees_are_tried() -> None:
    found = need("vllm", parallel={"tp": 4, "pp": 2}, resources={"max_workers": 2})
    assert (found.shares[0].tp, found.shares[0].pp) == (4, 2)  # the others serve advice
    (asked,) = asks("vllm", parallel={"tp": 4, "pp": 2}, resources={"max_workers": 2})
    assert [(one.gpus, one.workers, one.tp, one.pp) for one in asked.layouts][:2] == [(8, 1, 4, 2), (8, 2, 4, 2)]
    (refused,) = asks("vllm", parallel={"tp": 3})
    assert refused.layouts == ()
    assert refused.refused == (Reason.HEADS_INDIVISIBLE,)


def test_each_copy_has_a_cache_also_where_its_size_is_unknown() -> None:
    silent = replace(LLAMA, kv_heads=None)
    found = need("vllm", silent, parallel={"tp": 2, "dp": 4})
    assert found.shares[0].parts["cache"] == need("vllm", silent, parallel={"tp": 2}).shares[0].parts["cache"]


def test_the_servers_pad_the_vocabulary_but_not_the_heads() -> None:
    assert need("vllm", replace(LLAMA, vocab=10_001)).vocab == 10_048
    (asked,) = asks("vllm", replace(LLAMA, heads=25, kv_heads=5, vocab=128_000))
    assert [one.tp for one in asked.layouts] == [1, 5, 1, 5]
    (asked,) = asks("vllm", replace(LLAMA, vision_heads=6))
    assert [one.tp for one in asked.layouts] == [1, 2, 1, 2]
    assert (Reason.VISION_INDIVISIBLE) in asked.refused
    (asked,) = asks("vllm", replace(LLAMA, vision=True, vision_heads=6), args={"mm-encoder-tp-mode": "data"})
    assert [one.tp for one in asked.layouts[:3]] == [1, 2, 4]
    assert need("sglang", replace(LLAMA, vision=True)).parts["images"] == 3072


def test_an_encoder_keeps_no_cache() -> None:
    found = need("vllm", BERT)
    assert "cache" not in found.shares[0].parts
    assert found.shares[0].parts["weights"] == 209  # half of 32 bits
    assert (found.context, found.sequences) == (None, None)
    line = process(spec("vllm"), replace(ONE, context=found.context, sequences=found.sequences)).argv
    assert line[-2] == "--gpu-memory-utilization"  # no length: its tokenizer may allow less than its config
    assert found.compute_capability is None


def test_adapters_are_read_and_counted() -> None:
    wanted = spec("vllm", args={"enable-lora": True, "lora-modules": ["a=/adapters/a", "b=org/b"]})
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert work.payload == {
        "repo": "org/name", "revision": "main",
        "adapters": [{"path": "/adapters/a"}, {"repo": "org/b", "revision": "main"}],
    }  # fmt: skip
    assert need("vllm", replace(LLAMA, adapter_bytes=2**30)).shares[0].parts["adapters"] == GIB


HALF = replace(LLAMA, dtype="float16")
FP8 = {"F8_E4M3": 10}


@pytest.mark.parametrize(
    ("quantization", "dtypes", "vllm", "sglang"),
    [
        # Weight-only kernels of Marlin run them on Turing and Ampere.
        (Quantization("fp8", 8), FP8, (7, 5), (8, 0)),
        (Quantization("compressed-tensors", 8), FP8, (7, 5), (8, 0)),
        (Quantization("compressed-tensors", 4), FP8 | {"U8": 90}, (7, 5), (10, 0)),  # NVFP4
        (Quantization("modelopt", 4), FP8 | {"U8": 90}, (7, 5), (10, 0)),
        (Quantization("modelopt_fp4", 4), FP8 | {"U8": 90}, (7, 5), (10, 0)),
        (Quantization("modelopt", 8), FP8, (8, 0), (8, 9)),
        (Quantization("fbgemm_fp8", 8), FP8, (8, 0), (8, 0)),
        (Quantization("quark", 8), FP8, (8, 9), (8, 9)),  # of these the activations have 8 bits too
        (Quantization("gptq", 4), {"I32": 100}, (7, 0), (7, 5)),
    ],
)
def test_weights_of_8_and_4_bits_run_where_the_servers_have_kernels(
    quantization: Quantization, dtypes: dict[str, int], vllm: tuple[int, int], sglang: tuple[int, int]
) -> None:
    facts = replace(HALF, quantization=quantization, dtypes=dtypes)
    for engine, least in (("vllm", vllm), ("sglang", sglang)):
        (asked,) = asks(engine, facts)
        assert asked.compatibility.min_compute_capability == least, engine
        (asked,) = asks(engine, facts, resources={"gpu_memory": "40GiB", "gpus": 1})
        own = {"vllm": (7, 0), "sglang": (7, 5)}[engine]
        assert asked.compatibility.min_compute_capability == own, f"{engine}: stated memory overrides the guess"
        (asked,) = asks(engine, facts, resources={"compute_capability": ">=7.5"})
        assert asked.compatibility.min_compute_capability == own, f"{engine}: a stated capability overrides the guess"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("facts", "args", "least"),
    [
        (LLAMA, {}, (8, 0)),  # no bfloat16 on Turing
        (LLAMA, {"dtype": "half"}, None),
        (replace(LLAMA, dtype="float16"), {}, None),
        (replace(LLAMA, dtype="float16", quantization=Quantization("awq", 4)), {}, (7, 5)),
        (replace(LLAMA, dtypes={"F8_E4M3": 10}, quantization=Quantization("fp8", 8)), {}, (8, 0)),  # bfloat16
        (replace(LLAMA, quantization=Quantization("compressed-tensors", 4)), {"dtype": "half"}, (7, 5)),
        (LLAMA, {"quantization": "fp8"}, (8, 0)),
        (LLAMA, {"kv-cache-dtype": "fp8_e5m2"}, (8, 9)),
        (replace(LLAMA, quantization=Quantization("mxfp4", 4)), {}, (8, 0)),
    ],
)
def test_types_against_capability(
    engine: str, facts: ModelFacts, args: dict[str, Any], least: tuple[int, int] | None
) -> None:
    (asked,) = asks(engine, facts, args=args)
    own = {"vllm": (7, 0), "sglang": (7, 5)}[engine]
    assert asked.compatibility.min_compute_capability == max(own, least or own)
    assert asked.compatibility.engine == engine


def test_auto_places_fp8_weights_on_ampere_but_not_with_transformers() -> None:
    eight_bit = replace(LLAMA, dtypes={"F8_E4M3": 10}, quantization=Quantization("fp8", 8))
    assert [asked.compatibility.min_compute_capability for asked in asks("auto", eight_bit)] == [
        (8, 0), (8, 0), (8, 9)
    ]  # fmt: skip
    assert need("transformers", eight_bit, args={"device": "cpu"}).compute_capability is None


def test_needs_that_are_refused_on_every_host() -> None:
    for engine, facts in (
        ("vllm", QUANTISED),
        ("sglang", QUANTISED),
        ("transformers", QUANTISED),
        ("llama-cpp", LLAMA),
        ("vllm", replace(LLAMA, architectures=("T5ForConditionalGeneration",))),
    ):
        (asked,) = asks(engine, facts)
        assert (asked.layouts, asked.refused) == ((), (Reason.ENGINE_UNSUPPORTED,)), engine
        assert need(engine, facts).notes
