"""llama.cpp, which spreads layers and does not split matrices; and `engine: auto`."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controller.domain.placement import Need, need_from_json, need_to_json
from controller.engines.base import Launch, SpecError
from controller.engines.registry import engine_for, validate
from controller.scheduling.estimate import asks_for
from support.builders.engine_specs import GIB, LLAMA, ONE, QUANTISED, asks, need, process, spec


def test_llama_server() -> None:
    started = process(spec("llama-cpp"), replace(ONE, sequences=4))
    assert " ".join(started.argv) == (
        "llama-server --model /m.gguf --host 127.0.0.1 --port {port} --metrics --cache-ram 1024 --n-gpu-layers 999"
        " --ctx-size 32768 --parallel 4"
    )
    assert started.request_model is None
    own = process(spec("llama-cpp", args={"n-gpu-layers": 10, "ctx-size": 4096, "parallel": 2}), ONE)
    assert own.argv[8:] == ("--cache-ram", "1024", "--n-gpu-layers", "10", "--ctx-size", "4096", "--parallel", "2")


def test_llama_cpp_spreads_layers_over_gpus() -> None:
    found = need("llama-cpp", QUANTISED)
    (asked,) = asks("llama-cpp", QUANTISED)
    assert [(one.gpus, one.tp, one.pp) for one in asked.layouts[:3]] == [(1, 1, 1), (2, 1, 2), (3, 1, 3)]
    assert found.shares[0].parts["cache"] == 4 * GIB  # 4 slots of 8192 tokens
    assert found.shares[0].parts["weights"] == 4693
    assert asked.layouts[0].memory_mib > asked.layouts[1].memory_mib > asked.layouts[0].memory_mib / 2
    assert asked.tried == ()
    halved = need("llama-cpp", QUANTISED, args={"cache-type-k": "q8_0", "cache-type-v": "q8_0"})
    assert halved.shares[0].parts["cache"] == 4 * GIB * 34 / 64
    (two,) = asks("llama-cpp", QUANTISED, resources={"gpus": 2})
    assert [(one.gpus, one.pp) for one in two.layouts] == [(2, 2)]


def test_llama_cpp_keeps_a_batch_beside_each_slots_window() -> None:
    windowed = replace(QUANTISED, sliding_window=1024, full_layers=8)

    def part(name: str, **args: Any) -> int:
        return need("llama-cpp", windowed, args=args).shares[0].parts[name]

    per_token = 4096 / 2**20  # of one layer, MiB
    assert part("cache") == (8 * 8192 + 24 * (1024 + 512 + 256)) * 4 * per_token
    assert part("cache", **{"swa-full": True}) == 4 * GIB
    assert part("cache", **{"ubatch-size": 2048}) == (8 * 8192 + 24 * (1024 + 2048 + 256)) * 4 * per_token
    assert part("compute", **{"ubatch-size": 2048}) == pytest.approx(4 * part("compute"), abs=4)


def test_llama_cpp_uses_the_default_context_where_a_stated_memory_is_all_that_is_known() -> None:
    """Without a stated context it would use the model's own, whatever the claim."""
    wanted = spec("llama-cpp", resources={"gpu_memory": "8GiB"})
    given = engine_for(wanted).assumed(wanted)
    assert given is not None
    launch = replace(ONE, context=given.context, sequences=given.sequences)
    assert " ".join(process(wanted, launch).argv).endswith("--n-gpu-layers 999 --ctx-size 32768 --parallel 4")


def test_llama_cpp_reads_adapters_and_vision_towers() -> None:
    wanted = spec("llama-cpp", args={"lora": "/a.gguf", "mmproj": "/tower.gguf"})
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert work.payload["adapters"] == [{"gguf": "/a.gguf"}, {"gguf": "/tower.gguf"}]


def test_layers_stay_in_host_memory_only_where_the_user_asks() -> None:
    whole, part = need("llama-cpp", QUANTISED), need("llama-cpp", QUANTISED, args={"n-gpu-layers": 11})
    assert whole.host_memory_mib == 512 + 1024  # its cache of prompts
    assert (
        part.host_memory_mib == 1536 + 3129 + 4 * GIB * 22 // 32
    )  # 22 of 33 layers, and their cache: the output has none
    assert part.shares[0].parts["weights"] == 1565
    assert part.shares[0].parts["cache"] == 4 * GIB * 10 / 32
    assert part.shares[0].parts["offload"] == 143  # a layer that a large batch copies to the GPU
    assert any("11 of 33 layers" in note for note in part.notes)
    on_host = need("llama-cpp", QUANTISED, args={"n-gpu-layers": 0})
    assert on_host.memory_mib == 0
    assert on_host.host_memory_mib == 1536 + 4693 + 4 * GIB
    launch = Launch(context=on_host.context, sequences=on_host.sequences)
    # Else it would use the model's own context: 131,072 tokens are sixteen times as much.
    line = " ".join(process(spec("llama-cpp", args={"n-gpu-layers": 0}), launch).argv)
    assert "--ctx-size 32768 --parallel 4" in line
    silent = need("llama-cpp", replace(QUANTISED, kv_heads=None), args={"n-gpu-layers": 0})
    assert silent.parts["cache"] == pytest.approx(4693 / 5, abs=1)  # unknown, and not zero
    (asked,) = asks("llama-cpp", QUANTISED, args={"n-gpu-layers": 0})
    assert [one.gpus for one in asked.layouts] == [0]


def test_auto_tries_the_best_engine_first_and_says_why() -> None:
    chain = asks("auto", LLAMA)
    assert [asked.engine for asked in chain] == ["vllm", "sglang", "transformers"]
    assert [asked.compatibility.engine for asked in chain] == ["vllm", "sglang", "transformers"]
    assert need("auto", LLAMA).notes[-1] == "engine: vllm, or sglang, transformers where that fits nowhere"
    gguf = asks("auto", QUANTISED, model="gguf:/m.gguf")
    assert [asked.engine for asked in gguf] == ["llama-cpp"]
    cpu = asks("auto", LLAMA, args={"device": "cpu"})
    assert [(asked.engine, asked.layouts[0].gpus) for asked in cpu] == [("transformers", 0)]
    shown = asks("auto", LLAMA, args={"context_length": 4096})
    assert [asked.engine for asked in shown] == ["sglang"]  # one of its own flags is given
    old = asks("auto", replace(LLAMA, architectures=("T5ForConditionalGeneration",)))
    assert [asked.engine for asked in old] == ["transformers"]
    assert any(
        "vllm does not support T5" in note
        for note in need("auto", replace(LLAMA, architectures=("T5ForConditionalGeneration",))).notes
    )


def test_auto_without_a_stored_engine_is_transformers() -> None:
    wanted = spec("auto")
    asked = asks_for(wanted, Need(3768), engine_for(wanted), instance="i", deployment_uid="d")
    assert (asked.engine, asked.otherwise) == ("transformers", None)
    assert [(one.gpus, one.memory_mib) for one in asked.layouts] == [(1, 3768)]
    assert engine_for(wanted).chosen("").process(wanted, Launch()).argv[0] == "transformers"


def test_a_need_is_stored_whole() -> None:
    for facts, model in ((LLAMA, "hf:org/name"), (QUANTISED, "gguf:/m.gguf")):
        found = need("auto", facts, model=model, resources={"max_workers": 2} if facts is LLAMA else {})
        assert found.by_engine
        assert need_from_json(json.loads(json.dumps(need_to_json(found)))) == found


def test_compute_grows_with_the_context_of_a_slot() -> None:
    """As measured with a tiny model: 28 MiB more for 28k tokens, 96 MiB for 96k; it does not grow with slots."""

    def compute(**args: Any) -> int:
        return need("llama-cpp", QUANTISED, args=args).shares[0].parts["compute"]

    at_4k, at_32k, at_128k = (compute(**{"ctx-size": n * 1024, "parallel": 1}) for n in (4, 32, 128))
    assert (at_32k - at_4k, at_128k - at_32k) == (28, 96)
    assert compute(**{"ctx-size": 32 * 1024, "parallel": 8}) == at_4k
    assert compute(**{"ctx-size": 32 * 1024, "parallel": 8, "kv-unified": True}) == at_32k
    off = compute(**{"ctx-size": 32 * 1024, "parallel": 1, "flash-attn": "off"})
    assert off == at_4k - 4 + 64 * (1 + 32)  # 32 heads


@pytest.mark.parametrize(
    ("args", "stated", "flag", "host"),
    [
        ({}, "auto", "1024", 512 + 1024),
        ({}, "1GiB", "512", 1024),  # within the stated claim
        ({"cache-ram": 4096}, "auto", "4096", 512 + 4096),
        ({"cache_ram": 0}, "auto", "0", 512),
        ({"cache-ram": -1}, "8GiB", "-1", 8192),
    ],
)
def test_the_cache_of_prompts_is_bounded_and_claimed(args, stated, flag, host) -> None:
    fields = {"args": args, "resources": {"host_memory": stated}}
    argv = process(spec("llama-cpp", **fields), ONE).argv
    assert argv.count("--cache-ram") == 1
    assert argv[argv.index("--cache-ram") + 1] == flag
    (asked,) = asks("llama-cpp", QUANTISED, **fields)
    assert asked.host_memory_mib == host


def test_a_cache_of_prompts_without_a_bound_needs_a_stated_claim() -> None:
    with pytest.raises(SpecError, match=r"^args.cache-ram: must be MiB of host memory"):
        validate(spec("llama-cpp", args={"cache-ram": -1}))
