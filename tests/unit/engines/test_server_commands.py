"""vLLM, SGLang and llama.cpp: their command lines, and which args are refused."""

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.base import Launch, SpecError
from controller.engines.registry import validate
from controller.engines.servers.sglang import static_fraction
from controller.engines.servers.vllm import memory_fraction
from support.builders.engine_specs import GIB, ONE, process, spec


def test_vllm_on_a_share_of_one_gpu() -> None:
    started = process(spec("vllm", model="hf:org/name@v1", args={"enforce-eager": True, "max_num_seqs": 8}), ONE)
    assert " ".join(started.argv) == (
        "vllm serve org/name --revision v1 --host 127.0.0.1 --port {port} --gpu-memory-utilization 0.2367"
        " --max-model-len 8192 --enforce-eager --max-num-seqs 8"
    )
    assert started.probe is not None
    assert (started.probe.path, started.request_model, started.gpus_by_index) == ("/health", "org/name", True)
    assert started.metrics.request_gauges == ("vllm:num_requests_running", "vllm:num_requests_waiting")
    assert started.env == {}
    folder = process(spec("vllm", model="path:/m", args={"max-model-len": "4k", "served-model-name": ["a", "b"]}), ONE)
    assert folder.argv.count("--max-model-len") == 1
    assert (folder.request_model, folder.env) == ("a", {"HF_HUB_OFFLINE": "1"})


def flags_given(engine: str, **args: Any) -> str:
    return " ".join(process(spec(engine, args=args), Launch(gpu_count=1)).argv).partition("{port} ")[2]


def test_each_server_gets_its_flags_in_its_own_form() -> None:
    """In their lists the last flag wins, only vLLM reads 8k, and SGLang's switches have no `--no-`."""
    assert flags_given("vllm", lora_modules=["a=/a", "b=/b"], middleware=["m", "n"], enforce_eager=False) == (
        "--lora-modules a=/a b=/b --middleware m --middleware n --no-enforce-eager"
    )
    assert flags_given("sglang", **{"lora-paths": ["a=/a", "b=/b"], "context-length": "8k", "skip": False}) == (
        "--enable-metrics --lora-paths a=/a b=/b --context-length 8000"
    )
    assert flags_given("llama-cpp", **{"lora": ["/a", "/b"], "ctx-size": "8K", "parallel": 1, "mmap": False}) == (
        "--metrics --cache-ram 1024 --n-gpu-layers 999 --lora /a --lora /b --ctx-size 8192 --parallel 1 --no-mmap"
    )


def test_a_claim_of_four_gib_is_four_gib() -> None:
    """Of 80 GiB: vLLM's fraction and what it takes on top add up to the claim."""
    launch = replace(ONE, memory_mib=4 * GIB)
    fraction = memory_fraction(launch)
    assert fraction is not None
    assert fraction * launch.gpu_mib == pytest.approx(4 * GIB - 576 - 512, abs=1)
    assert memory_fraction(replace(launch, memory_mib=80 * GIB, exclusive=True)) == 0.9
    assert memory_fraction(replace(launch, memory_mib=80 * GIB)) == 0.98
    # On a whole GPU its fraction is at least that of a share of the same size.
    for of in (memory_fraction, static_fraction):
        whole = replace(launch, memory_mib=80 * GIB, exclusive=True, need_mib=78 * GIB)
        assert of(whole) == of(replace(launch, memory_mib=78 * GIB)) > 0.9
    assert memory_fraction(replace(launch, memory_mib=100)) == 0.001
    # On a small GPU, what comes on top of the fraction is more than a tenth.
    small = replace(launch, memory_mib=8 * GIB, gpu_mib=8 * GIB, exclusive=True, need_mib=2 * GIB)
    assert memory_fraction(small) == pytest.approx((8 * GIB - 576 - 512) / (8 * GIB))
    assert memory_fraction(Launch()) is None


def test_vllm_gets_the_number_of_sequences_of_its_need() -> None:
    """Its own default is 1024 on GPUs of 70 GiB and more, whose logits would not be in the claim."""
    assert " ".join(process(spec("vllm"), ONE).argv).endswith("--max-model-len 8192 --max-num-seqs 256")
    assert "--max-num-seqs" not in process(spec("vllm"), replace(ONE, exclusive=True)).argv
    few = process(spec("vllm", args={"max-num-batched-tokens": 128}), ONE).argv
    assert few[few.index("--max-num-seqs") + 1] == "128"


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
        " --context-length 8192 --max-total-tokens 131072 --max-running-requests 256"
    )
    assert started.metrics.request_gauges == ("sglang:num_running_reqs", "sglang:num_queue_reqs")
    launch = replace(ONE, tp=4, pp=2, workers=2, rank=1, leader="h", rendezvous_port=10001, exclusive=True)
    follower = process(spec("sglang", args={"context-length": 4096}), launch)
    assert " ".join(follower.argv[7:]) == (
        "{port} --enable-metrics --tp-size 4 --pp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr h:10001"
        " --mem-fraction-static 0.8500 --context-length 4096"
    )
    assert (follower.probe, follower.metrics.request_gauges) == (None, ())
    assert "[fd00::1]:10001" in process(spec("sglang"), replace(launch, leader="fd00::1")).argv
    assert static_fraction(Launch()) is None
    shared = static_fraction(replace(ONE, others_mib=40 * GIB))
    assert shared is not None
    assert shared * (40 * GIB - 576) == pytest.approx(
        20 * GIB - 576 - 512 - 1536, abs=1
    )  # of the memory that is free then


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
        ("vllm", {"args": {"dtype": "int3"}}, "args.dtype: must be .*, got int3"),
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
        ("llama-cpp", {"args": {"cache-type-k": "q3"}}, "args.cache-type-k: must be .*, got q3"),
        ("llama-cpp", {"args": {"tensor-split": "3,1"}}, "args.tensor-split: .*as many layers"),
        ("llama-cpp", {"args": {"split-mode": "none"}}, "args.split-mode: .*resources.gpus: 1"),
        ("llama-cpp", {"resources": {"max_workers": 2}}, "resources.max_workers"),
        # With `engine: auto`, a flag of one engine selects that engine, also where the flag is refused.
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


def test_answers_carry_the_name_of_the_deployment() -> None:
    named = Launch(gpu_count=1, name="chat")
    vllm = process(spec("vllm"), named)
    assert " --served-model-name chat org/name" in " ".join(vllm.argv)
    assert vllm.request_model == "org/name", "the second name, which a process of an earlier version knows too"
    own = process(spec("vllm", args={"served-model-name": "mine"}), named)
    assert " ".join(own.argv).count("--served-model-name") == 1
    assert own.request_model == "mine"
    sglang = process(spec("sglang"), named)
    assert " --served-model-name chat" in " ".join(sglang.argv)
    assert sglang.request_model is None, "it answers by the name that was asked for, so nothing is rewritten"
    assert process(spec("sglang", args={"served-model-name": "mine"}), named).request_model == "mine"
    assert " --alias chat" in " ".join(process(spec("llama-cpp"), named).argv)
    assert "chat" not in process(spec("llama-cpp", args={"alias": "mine"}), named).argv
    rank = process(spec("vllm", resources={"max_workers": 2}), Launch(4, tp=4, pp=2, workers=2, rank=1, name="chat"))
    assert "--served-model-name" not in rank.argv
