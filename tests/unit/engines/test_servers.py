"""vLLM and SGLang: what they are started with, what they need, and what their tables refuse."""

from dataclasses import replace
from typing import Any

import pytest

from gpuward.controller.domain.model_facts import ModelFacts, Quantization
from gpuward.controller.engines.base import Launch, SpecError
from gpuward.controller.engines.registry import engine_for, validate
from gpuward.controller.engines.sglang import static_fraction
from gpuward.controller.engines.vllm import memory_fraction
from gpuward.controller.scheduling.estimate import asks_for
from gpuward.schemas.reasons import Reason
from support.engine_asks import BERT, GIB, LLAMA, ONE, QUANTISED, asks, need, process, spec


def test_vllm_on_a_part_of_one_gpu() -> None:
    started = process(spec("vllm", model="hf:org/name@v1", args={"enforce-eager": True, "max_num_seqs": 8}), ONE)
    assert " ".join(started.argv) == (
        "vllm serve org/name --revision v1 --host 127.0.0.1 --port {port} --gpu-memory-utilization 0.2367"
        " --max-model-len 8192 --enforce-eager --max-num-seqs 8"
    )
    assert started.probe is not None
    assert (started.probe.path, started.request_model, started.gpus_by_index) == ("/health", "org/name", True)
    assert started.request_gauges == ("vllm:num_requests_running", "vllm:num_requests_waiting")
    assert started.env == {}
    folder = process(spec("vllm", model="path:/m", args={"max-model-len": "4k", "served-model-name": ["a", "b"]}), ONE)
    assert folder.argv.count("--max-model-len") == 1
    assert (folder.request_model, folder.env) == ("a", {"HF_HUB_OFFLINE": "1"})


def flags_given(engine: str, **args: Any) -> str:
    return " ".join(process(spec(engine, args=args), Launch(gpu_count=1)).argv).partition("{port} ")[2]


def test_each_server_is_given_its_flags_as_it_reads_them() -> None:
    """Their lists keep what the last flag says, only vLLM reads 8k, and SGLang's switches have no `--no-`."""
    assert flags_given("vllm", lora_modules=["a=/a", "b=/b"], middleware=["m", "n"], enforce_eager=False) == (
        "--lora-modules a=/a b=/b --middleware m --middleware n --no-enforce-eager"
    )
    assert flags_given("sglang", **{"lora-paths": ["a=/a", "b=/b"], "context-length": "8k", "skip": False}) == (
        "--enable-metrics --lora-paths a=/a b=/b --context-length 8000"
    )
    assert flags_given("llama-cpp", **{"lora": ["/a", "/b"], "ctx-size": "8K", "parallel": 1, "mmap": False}) == (
        "--metrics --n-gpu-layers 999 --lora /a --lora /b --ctx-size 8192 --parallel 1 --no-mmap"
    )


def test_a_model_of_four_gib_takes_four_gib() -> None:
    """Of 80 GiB: what vLLM is told, and what it takes besides, are the claim."""
    launch = replace(ONE, memory_mib=4 * GIB)
    fraction = memory_fraction(launch)
    assert fraction is not None
    assert fraction * launch.gpu_mib == pytest.approx(4 * GIB - 576 - 512, abs=1)
    assert memory_fraction(replace(launch, memory_mib=80 * GIB, exclusive=True)) == 0.9
    assert memory_fraction(replace(launch, memory_mib=80 * GIB)) == 0.98
    # Claimed whole, it is told to take no less than what a part of the same size would be.
    for of in (memory_fraction, static_fraction):
        whole = replace(launch, memory_mib=80 * GIB, exclusive=True, need_mib=78 * GIB)
        assert of(whole) == of(replace(launch, memory_mib=78 * GIB)) > 0.9
    assert memory_fraction(replace(launch, memory_mib=100)) == 0.01
    assert memory_fraction(Launch()) is None


def test_vllm_keeps_to_as_many_sequences_as_were_reckoned_for() -> None:
    """Its own default is 1024 on GPUs of 70 GiB and more, whose logits would not be in the claim."""
    assert " ".join(process(spec("vllm"), ONE).argv).endswith("--max-model-len 8192 --max-num-seqs 256")
    assert "--max-num-seqs" not in process(spec("vllm"), replace(ONE, exclusive=True)).argv


@pytest.mark.parametrize("rank", [0, 1])
def test_vllm_over_two_workers(rank: int) -> None:
    launch = replace(
        ONE, gpu_count=8, tp=8, pp=2, workers=2, rank=rank, leader="10.0.0.1", rendezvous_port=12345, exclusive=True
    )
    argv = process(spec("vllm"), launch).argv
    serving = ("--host", "127.0.0.1", "--port", "{port}") if rank == 0 else ("--headless",)
    assert argv == (
        "vllm", "serve", "org/name", *serving, "--tensor-parallel-size", "8", "--pipeline-parallel-size", "2",
        "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "10.0.0.1", "--master-port", "12345",
        "--gpu-memory-utilization", "0.9000", "--max-model-len", "8192",
    )  # fmt: skip
    started = process(spec("vllm"), launch)
    assert (started.needs_port, started.probe is None) == (rank == 0, rank != 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_vllms_copies_over_two_workers(rank: int) -> None:
    launch = replace(ONE, gpu_count=8, tp=4, dp=4, workers=2, rank=rank, leader="h", rendezvous_port=11000)
    line = " ".join(process(spec("vllm"), launch).argv)
    assert "--tensor-parallel-size 4 --data-parallel-size 4 --data-parallel-size-local 2" in line
    assert ("--data-parallel-start-rank 2" in line) is (rank == 1)
    assert "--data-parallel-address h --data-parallel-rpc-port 11000" in line
    assert "nnodes" not in line


def test_sglang() -> None:
    started = process(spec("sglang", model="path:/m"), ONE)
    assert " ".join(started.argv) == (
        "sglang serve --model-path /m --host 127.0.0.1 --port {port} --enable-metrics --mem-fraction-static 0.2195"
        " --context-length 8192 --max-total-tokens 131072"
    )
    assert started.request_gauges == ("sglang:num_running_reqs", "sglang:num_queue_reqs")
    launch = replace(ONE, tp=4, pp=2, workers=2, rank=1, leader="h", rendezvous_port=10001, exclusive=True)
    follower = process(spec("sglang", args={"context-length": 4096}), launch)
    assert " ".join(follower.argv[7:]) == (
        "{port} --enable-metrics --tp-size 4 --pp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr h:10001"
        " --mem-fraction-static 0.8500 --context-length 4096"
    )
    assert (follower.probe, follower.request_gauges) == (None, ())
    assert static_fraction(Launch()) is None
    shared = static_fraction(replace(ONE, others_mib=40 * GIB))
    assert shared is not None
    assert shared * (40 * GIB - 576) == pytest.approx(20 * GIB - 576 - 512 - 1536, abs=1)  # of what is free then


@pytest.mark.parametrize(
    ("engine", "fields", "words"),
    [
        ("vllm", {"args": {"gpu-memory-utilization": 0.9}}, "args.gpu-memory-utilization: .*resources.gpu_memory"),
        ("vllm", {"args": {"tensor_parallel_size": 2}}, "args.tensor_parallel_size: .*parallel"),
        ("vllm", {"args": {"max-model-len": "long"}}, "args.max-model-len: must be a whole number"),
        ("vllm", {"args": {"max-num-seqs": 0}}, "args.max-num-seqs: must be"),
        ("vllm", {"args": {"max-num-seqs": True}}, "args.max-num-seqs: must be"),
        ("vllm", {"args": {"max-num-seqs": 1.5}}, "args.max-num-seqs: must be"),
        ("vllm", {"args": {"max-num-seqs": "9" * 400}}, "args.max-num-seqs: must be"),
        ("vllm", {"args": {"gpu-memory-util": 0.9}}, "args.gpu-memory-util: .*gpu-memory-utilization; write the flag"),
        ("vllm", {"args": {"max_num_seq": 8}}, "args.max_num_seq: .*max-num-seqs"),
        ("vllm", {"args": {"config": "/c.yaml"}}, "args.config: .*under args"),
        ("vllm", {"args": {"dtype": "int3"}}, "args.dtype: int3"),
        ("vllm", {"args": {"lora-modules": ["plain"]}}, "args.lora-modules: write each as name="),
        ("vllm", {"resources": {"gpus": 0}}, "resources.gpus: is 0"),
        ("vllm", {"model": "path:/a@b"}, "model: .*rename"),
        ("sglang", {"args": {"mem-fraction-static": 0.9}}, "args.mem-fraction-static: .*resources.gpu_memory"),
        ("sglang", {"args": {"mem-fraction": 0.9}}, "args.mem-fraction: .*mem-fraction-static; write the flag out"),
        ("sglang", {"args": {"tp": 2}}, "args.tp: .*parallel"),
        ("sglang", {"parallel": {"dp": 2}, "resources": {"max_workers": 2}}, "parallel.dp: sglang keeps"),
        ("llama-cpp", {"args": {"n-gpu-layers": "most"}}, "args.n-gpu-layers: must be"),
        ("llama-cpp", {"args": {"n-gpu-layers": "9" * 5000}}, "args.n-gpu-layers: must be"),
        ("llama-cpp", {"args": {"n-gpu-layers": 0}, "resources": {"gpus": 1}}, "args.n-gpu-layers: is 0"),
        ("llama-cpp", {"resources": {"gpus": 0}}, "resources.gpus: is 0"),
        ("llama-cpp", {"args": {"cache-type-k": "q3"}}, "args.cache-type-k: q3"),
        ("llama-cpp", {"args": {"tensor-split": "3,1"}}, "args.tensor-split: .*as many layers"),
        ("llama-cpp", {"args": {"split-mode": "none"}}, "args.split-mode: .*resources.gpus: 1"),
        ("llama-cpp", {"resources": {"max_workers": 2}}, "resources.max_workers"),
        # With the engine left open, a flag that only one of them has shows which is meant, also where it is refused.
        ("auto", {"args": {"gpu-memory-utilization": 0.9}}, "args.gpu-memory-utilization: .*resources.gpu_memory"),
        ("auto", {"args": {"tensor-parallel-size": 2}}, "args.tensor-parallel-size: .*parallel"),
        (
            "auto",
            {"args": {"max-model-len": 9, "context-length": 9}},
            "args: context-length, max-model-len are flags of",
        ),
    ],
)
def test_refusals_name_the_field_and_the_fix(engine: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match="^" + words):
        validate(spec(engine, **fields))


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


def test_stated_context_and_concurrency_are_what_is_reckoned() -> None:
    found = need("vllm", args={"max-model-len": "32K", "max-num-seqs": 4})
    assert found.shares[0].parts["cache"] == 16 * GIB
    assert len({(one.tp, one.pp) for one in found.shares}) == len(found.shares)  # no second turn for fewer
    assert (found.context, found.sequences) == (32_768, 4)
    halved = need("vllm", args={"kv-cache-dtype": "fp8"})
    assert halved.shares[0].parts["cache"] == 8 * GIB
    assert need("sglang", args={"context-length": 4096, "max-running-requests": 16}).shares[0].parts["cache"] == 8 * GIB


def test_a_window_counts_where_the_server_keeps_to_it() -> None:
    windowed = replace(LLAMA, sliding_window=1024, full_layers=8)

    def cached(engine: str, **args: Any) -> int:
        return need(engine, windowed, args=args).shares[0].parts["cache"]

    per_token = 4096 / 2**20  # of one layer, MiB
    assert cached("vllm") == (8 * 16 * 8192 + 24 * (16 * 1024 + 8192)) * per_token
    assert cached("vllm", **{"max-num-batched-tokens": 2048}) == (8 * 16 * 8192 + 24 * (16 * 1024 + 2048)) * per_token
    assert cached("vllm", **{"disable-hybrid-kv-cache-manager": True}) == 16 * GIB
    assert cached("sglang") == 16 * GIB


def test_stated_degrees_are_the_only_ones() -> None:
    found = need("vllm", parallel={"tp": 4, "pp": 2}, resources={"max_workers": 2})
    assert (found.shares[0].tp, found.shares[0].pp) == (4, 2)  # the others are for advice
    (asked,) = asks("vllm", parallel={"tp": 4, "pp": 2}, resources={"max_workers": 2})
    assert [(one.gpus, one.workers, one.tp, one.pp) for one in asked.layouts][:2] == [(8, 1, 4, 2), (8, 2, 4, 2)]
    (refused,) = asks("vllm", parallel={"tp": 3})
    assert refused.layouts == ()
    assert refused.refused == (Reason.HEADS_INDIVISIBLE,)


def test_the_servers_pad_the_vocabulary_but_not_the_heads() -> None:
    assert need("vllm", replace(LLAMA, vocab=10_001)).vocab == 10_048
    (asked,) = asks("vllm", replace(LLAMA, heads=25, kv_heads=5, vocab=128_000))
    assert [one.tp for one in asked.layouts] == [1, 5, 1, 5]
    (asked,) = asks("vllm", replace(LLAMA, vision_heads=6))
    assert [one.tp for one in asked.layouts] == [1, 2, 1, 2]
    assert (Reason.VISION_INDIVISIBLE) in asked.refused


def test_an_encoder_keeps_no_cache() -> None:
    found = need("vllm", BERT)
    assert "cache" not in found.shares[0].parts
    assert found.shares[0].parts["weights"] == 209  # half of 32 bits
    assert (found.context, found.sequences) == (None, None)
    line = process(spec("vllm"), replace(ONE, context=found.context, sequences=found.sequences)).argv
    assert line[-2] == "--gpu-memory-utilization"  # no length: that of its tokenizer may be less than its config's
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


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("facts", "args", "least"),
    [
        (LLAMA, {}, (8, 0)),  # no bfloat16 on Turing
        (LLAMA, {"dtype": "half"}, None),
        (replace(LLAMA, dtype="float16"), {}, None),
        (replace(LLAMA, dtype="float16", quantization=Quantization("awq", 4)), {}, (7, 5)),
        (replace(LLAMA, dtypes={"F8_E4M3": 10}, quantization=Quantization("fp8", 8)), {}, (8, 9)),  # no FP8 on Ampere
        (replace(LLAMA, dtypes={"F8_E4M3": 10}, quantization=Quantization("compressed-tensors", 8)), {}, (8, 9)),
        (replace(LLAMA, quantization=Quantization("compressed-tensors", 4)), {"dtype": "half"}, (7, 5)),
        (LLAMA, {"quantization": "fp8"}, (8, 9)),
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


def test_fp8_weights_do_not_come_to_ampere_by_the_last_engine_of_auto() -> None:
    eight_bit = replace(LLAMA, dtypes={"F8_E4M3": 10}, quantization=Quantization("fp8", 8))
    assert [asked.compatibility.min_compute_capability for asked in asks("auto", eight_bit)] == [(8, 9)] * 3
    assert need("transformers", eight_bit, args={"device": "cpu"}).compute_capability is None


def test_what_no_host_could_help() -> None:
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


def test_memory_given_by_the_user_needs_no_reading() -> None:
    for engine in ("vllm", "sglang", "auto"):
        wanted = spec(engine, resources={"gpu_memory": "20GiB", "gpus": 2})
        assert engine_for(wanted).analysis(wanted) is None
        need_given = engine_for(wanted).need(wanted, None)
        asked = asks_for(wanted, need_given, engine_for(wanted), instance="i", deployment_uid="d")
        assert [(one.gpus, one.memory_mib) for one in asked.layouts] == [(2, 20 * GIB)]


def test_of_memory_given_by_the_user_sglangs_cache_is_bounded_by_what_else_he_says() -> None:
    wanted = spec(
        "sglang",
        resources={"gpu_memory": "20GiB"},
        args={"context-length": 4096, "max-running-requests": 8},
    )
    reckoned = engine_for(wanted).need(wanted, None)
    launch = replace(ONE, context=reckoned.context, sequences=reckoned.sequences)
    assert "--max-total-tokens 32768 " in " ".join(process(wanted, launch).argv)
