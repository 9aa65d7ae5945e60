"""Flags that keep weights or cache in the host's memory, and draft models: what GPUs and host claim for them."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.model_facts import ModelFacts, facts_from_json, facts_to_json
from controller.domain.placement import Need
from controller.engines.base import Launch
from controller.engines.estimates.llama_cpp_offload import host_rules, residence
from controller.engines.registry import engine_for, validate
from controller.model_files.gguf_model import by_layer
from support.builders.engine_specs import GIB, LLAMA, QUANTISED, asks, need, process, spec

MIB = 2**20
# 32 layers of 100 MiB with 80 MiB of experts each, and 300 MiB of embeddings and output.
EXPERTS = replace(
    QUANTISED, weight_bytes=3500 * MIB, experts=8, experts_per_token=2, layer_bytes=(100 * MIB,) * 32,
    host_layer_bytes=(0,) * 32,
)  # fmt: skip
DRAFT = replace(LLAMA, weight_bytes=512 * MIB, dtypes={"BF16": 512 * MIB}, parameters=256 * MIB, layers=2)


def with_host(layers: int) -> ModelFacts:
    return replace(EXPERTS, host_layer_bytes=(80 * MIB,) * layers + (0,) * (32 - layers))


def figures(found: Need, gpus: int = 1) -> tuple[int, int, int, int]:
    """Weights, buffer of offloaded weights and cache on the GPU that holds most; the host's memory."""
    (parts,) = (share.parts for share in found.shares if share.gpus == gpus)
    runtime = 512 + 1024
    return parts["weights"], parts.get("offload", 0), parts.get("cache", 0), found.host_memory_mib - runtime


@pytest.mark.parametrize(
    ("args", "facts", "gpus", "expected"),
    [
        ({}, EXPERTS, 1, (3500, 0, 4 * GIB, 0)),
        ({"cpu-moe": True}, with_host(32), 1, (3500 - 32 * 80, 80, 4 * GIB, 32 * 80)),
        ({"n-cpu-moe": 8}, with_host(8), 1, (3500 - 8 * 80, 80, 4 * GIB, 8 * 80)),
        # The second GPU has the last 15 layers, whose experts stay there, and the output.
        ({"n-cpu-moe": 8}, with_host(8), 2, (15 * 100 + 300, 80, 4 * GIB * 17 // 32, 8 * 80)),
        ({"n-cpu-moe": 8, "no-op-offload": True}, with_host(8), 1, (3500 - 8 * 80, 0, 4 * GIB, 8 * 80)),
        ({"override-tensor": "exps=CPU"}, with_host(32), 1, (940, 80, 4 * GIB, 2560)),
        ({"no-kv-offload": True}, EXPERTS, 1, (3500, 0, 0, 4 * GIB)),
        ({"kv-offload": False}, EXPERTS, 2, (15 * 100 + 300, 0, 0, 4 * GIB)),
        # 10 layers and the output on the GPU; the first 8 of the others have their experts there anyway.
        ({"n-gpu-layers": 11, "n-cpu-moe": 8}, with_host(8), 1, (1300, 100, 1280, 2200 + 2816)),
        ({"n-gpu-layers": 33, "n-cpu-moe": 8}, with_host(8), 1, (3500 - 8 * 80, 80, 4 * GIB, 8 * 80)),
    ],
)  # fmt: skip
def test_what_llama_server_keeps_on_the_host(
    args: dict[str, Any], facts: ModelFacts, gpus: int, expected: tuple[int, ...]
) -> None:
    found = need("llama-cpp", facts, args=args)
    assert figures(found, gpus) == expected
    (asked,) = asks("llama-cpp", facts, args=args)
    assert asked.host_memory_mib == found.host_memory_mib, "placement claims it"
    assert bool(expected[3]) == any("GiB of weights and cache in host memory" in note for note in found.notes)


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ({"cpu-moe": True},
         {"blk.0.ffn_up_exps.weight", "blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_down_chexps.weight"}),
        ({"n-cpu-moe": 1}, {"blk.0.ffn_up_exps.weight"}),
        ({"n-cpu-ffn": 2}, {"blk.0.ffn_up.weight"}),
        ({"override-tensor": r"blk\.1\.=CPU,^token=CPU"},
         {"blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_down_chexps.weight", "token_embd.weight"}),
        ({"override-tensor": ["attn=CPU", "norm=CPU"]}, {"blk.0.attn_q.weight", "output_norm.weight"}),
        ({"n-gpu-layers": 1}, set()),
    ],
)  # fmt: skip
def test_rules_mean_the_tensors_that_llama_server_means(args: dict[str, Any], names: set[str]) -> None:
    tensors = {
        "token_embd.weight": 1, "output_norm.weight": 2, "blk.0.attn_q.weight": 4, "blk.0.ffn_up.weight": 8,
        "blk.0.ffn_up_exps.weight": 16, "blk.1.ffn_gate_up_exps.weight": 32, "blk.1.ffn_down_chexps.weight": 64,
    }  # fmt: skip
    wanted = spec("llama-cpp", args=args)
    validate(wanted)
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert work.payload["to_host"] == host_rules(wanted)
    found = by_layer(replace(QUANTISED, layers=2, weight_bytes=127), [tensors], work.payload["to_host"])
    assert found.layer_bytes == (28, 96)
    assert sum(found.host_layer_bytes) + found.host_other_bytes == sum(tensors[name] for name in names)
    assert facts_from_json(facts_to_json(found)) == found
    where = residence(found, None, 1)
    assert where.gpu_bytes + where.host_bytes == 127


def test_layers_are_measured_only_where_flags_need_it() -> None:
    wanted = spec("llama-cpp")
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert "to_host" not in work.payload


def test_a_stated_memory_is_weighed_against_what_stays_on_the_gpu() -> None:
    small = {"resources": {"gpu_memory": "3GiB"}}
    whole, kept = (need("llama-cpp", facts, args=args, **small) for facts, args in (
        (EXPERTS, {}), (with_host(32), {"cpu-moe": True})
    ))  # fmt: skip
    assert whole.shares[0].least_mib > 3 * GIB > kept.shares[0].least_mib
    (asked,) = asks("llama-cpp", with_host(32), args={"cpu-moe": True}, **small)
    assert (asked.layouts[0].memory_mib, asked.host_memory_mib) == (3 * GIB, 1536 + 2560)


def test_unread_files_with_weights_on_the_host_need_a_stated_claim() -> None:
    """How much of a file stays there is unknown as long as it cannot be read."""
    for resources, known in (({"gpu_memory": "8GiB"}, False), ({"gpu_memory": "8GiB", "host_memory": "8GiB"}, True)):
        for args in ({"cpu-moe": True}, {"n-gpu-layers": 20}, {"no-kv-offload": True}):
            wanted = spec("llama-cpp", args=args, resources=resources)
            assert (engine_for(wanted).assumed(wanted) is not None) == known
    every = spec("llama-cpp", args={"n-gpu-layers": 999}, resources={"gpu_memory": "8GiB"})
    assert engine_for(every).assumed(every) is not None


def test_layers_are_spread_as_evenly_as_they_are_claimed() -> None:
    """By default llama-server gives more layers to the GPU with more free memory, whatever each one's claim."""
    started = process(spec("llama-cpp", resources={"gpus": 3}), Launch(gpu_count=3, context=8192, sequences=4))
    assert started.argv[started.argv.index("--tensor-split") + 1] == "1,1,1"
    assert "--tensor-split" not in process(spec("llama-cpp"), Launch(gpu_count=1)).argv


def test_a_draft_model_of_llama_server() -> None:
    small = replace(QUANTISED, weight_bytes=512 * MIB, layers=4, vocab=1000, hidden_size=1024, intermediate_size=4096)
    facts = replace(QUANTISED, draft=small)
    wanted = spec("llama-cpp", args={"spec-draft-model": "/d.gguf"})
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert work.payload["draft"] == {"gguf": "/d.gguf"}
    found = need("llama-cpp", facts, args={"spec-draft-model": "/d.gguf"})
    assert found.shares[0].parts["draft"] == 512 + 4 * GIB * 4 / 32  # as many tokens, of fewer layers
    packed = {"spec-draft-model": "/d.gguf", "spec-draft-type-k": "q8_0", "spec-draft-type-v": "q8_0"}
    assert need("llama-cpp", facts, args=packed).shares[0].parts["draft"] == 512 + 512 * 34 // 64
    on_host = need("llama-cpp", facts, args={"spec-draft-model": "/d.gguf", "spec-draft-ngl": 0}, resources=ALL)
    assert "draft" not in on_host.shares[0].parts
    assert on_host.host_memory_mib == 1536 + 1024


ALL = {"gpu_memory": "all"}


@pytest.mark.parametrize(
    ("engine", "args", "gpus", "weights", "host"),
    [
        ("vllm", {}, 1, 15317, 0),
        ("vllm", {"cpu-offload-gb": 4}, 1, 15317 - 4096, 4096),
        ("vllm", {"cpu-offload-gb": 100}, 1, 2005, 100 * GIB),  # embeddings and head stay
        ("vllm", {"cpu-offload-gb": 1.5}, 2, 7659 - 1536, 3072),
        ("vllm", {"swap-space": 4}, 2, 7659, 8192),
        ("vllm", {"kv-offloading-size": 8}, 2, 7659, 8192),
        ("sglang", {"cpu-offload-gb": 4}, 1, 15317 - 4096, 4096),
        ("sglang", {"enable-hierarchical-cache": True, "hicache-size": 8}, 2, 7659, 15259),  # GB for each GPU
        ("sglang", {"enable-hicache": True}, 1, 15317, 2 * 16 * GIB),  # twice the cache of 16 sequences
        ("sglang", {"enable-hicache": True, "hicache-ratio": 1.5}, 1, 15317, 24 * GIB),
        ("sglang", {"hicache-size": 8}, 1, 15317, 0),  # it is not switched on
    ],
)
def test_what_servers_keep_on_the_host(engine: str, args: dict[str, Any], gpus: int, weights: int, host: int) -> None:
    fields = {"args": args, "resources": {"gpus": gpus}, "parallel": {"tp": gpus}}
    found = need(engine, LLAMA, **fields)
    assert found.shares[0].parts["weights"] == pytest.approx(weights, abs=2)
    assert found.host_memory_mib == pytest.approx(4096 + host, abs=2)
    (asked,) = asks(engine, LLAMA, **fields)
    assert asked.host_memory_mib == found.host_memory_mib
    assert any("host memory by its flags" in note for note in found.notes) == bool(host)
    # SGLang copies a layer back while it computes.
    copied = found.shares[0].parts.get("offload", 0)
    assert copied == (479 if engine == "sglang" and weights < 15317 and gpus == 1 else 0)


def test_where_the_server_chooses_a_stated_memory_counts_only_what_must_stay() -> None:
    args = {"offload-group-size": 4, "offload-num-in-group": 2}
    stated = {"resources": {"gpus": 1, "gpu_memory": "8GiB", "host_memory": "64GiB"}}
    (asked,) = asks("vllm", LLAMA, args=args, **stated)
    assert (asked.layouts[0].memory_mib, asked.host_memory_mib) == (8 * GIB, 64 * GIB)


@pytest.mark.parametrize(
    ("engine", "args", "source"),
    [
        ("vllm", {"speculative-config": {"method": "eagle3", "model": "a/b", "revision": "v2"}},
         {"repo": "a/b", "revision": "v2"}),
        ("vllm", {"speculative-config": '{"model":"/drafts/d"}'}, {"path": "/drafts/d"}),
        ("vllm", {"speculative-config.model": "a/b"}, {"repo": "a/b", "revision": "main"}),
        ("sglang", {"speculative-algorithm": "EAGLE", "speculative-draft-model-path": "a/b"},
         {"repo": "a/b", "revision": "main"}),
    ],
)  # fmt: skip
def test_a_draft_model_is_read_and_claimed(engine: str, args: dict[str, Any], source: dict[str, str]) -> None:
    wanted = spec(engine, args=args)
    validate(wanted)
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert work.payload["draft"] == source
    alone, beside = need(engine, LLAMA), need(engine, replace(LLAMA, draft=DRAFT), args=args)
    cache = alone.shares[0].parts["cache"]
    draft, draft_of_one = 512 + cache * 2 // 32, cache * 2 // 32 // 16
    assert beside.shares[0].parts["draft"] == draft
    assert beside.shares[0].memory_mib - alone.shares[0].memory_mib == draft
    assert beside.shares[0].least_mib - alone.shares[0].least_mib == 512 + draft_of_one
    fetched = [(one.repo, one.revision) for one in process(wanted, Launch()).fetches]
    assert ((source.get("repo"), source.get("revision")) in fetched) == ("repo" in source)
