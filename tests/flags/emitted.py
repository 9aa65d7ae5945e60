"""Every kind of argument list that Gpuward starts a server with: layouts, estimates, quantisation, adapters."""

from dataclasses import dataclass, replace
from typing import Any

from controller.engines.base import Launch
from controller.engines.registry import engine_for, validate
from support.builders.engine_specs import GIB, spec

SHARED = Launch(
    gpu_count=1, memory_mib=20 * GIB, gpu_mib=80 * GIB, context=8192, sequences=16, need_mib=18 * GIB, name="chat"
)
WHOLE = replace(SHARED, exclusive=True, memory_mib=80 * GIB)
UNKNOWN = Launch(gpu_count=1, memory_mib=80 * GIB, gpu_mib=80 * GIB, exclusive=True)
GANG = replace(WHOLE, gpu_count=4, tp=4, pp=2, workers=2, leader="10.0.0.1", rendezvous_port=12_345)
LOCAL = {
    "shared": SHARED,
    "whole": WHOLE,
    "nothing known": UNKNOWN,
    "beside others": replace(SHARED, others_mib=30 * GIB),
    "tp 4": replace(WHOLE, gpu_count=4, tp=4),
    "tp 2 pp 2": replace(SHARED, gpu_count=4, tp=2, pp=2),
    "dp 2 tp 2": replace(SHARED, gpu_count=4, dp=2, tp=2),
}
GANGS = {
    "gang of pp": GANG,
    "its second rank": replace(GANG, rank=1),
    "over IPv6": replace(GANG, leader="fd00::1"),
}
DP_GANGS = {
    "gang of dp": replace(GANG, pp=1, dp=4, tp=2),
    "its second rank": replace(GANG, pp=1, dp=4, tp=2, rank=1),
}
ADAPTERS = {"serving": {"adapters": {"sql": "path:/adapters/sql", "law": "hf:org/law"}}}
ARGS = {
    "vllm": [
        {}, {"max-model-len": "8k", "max-num-seqs": 32, "max-num-batched-tokens": 4096}, {"quantization": "fp8"},
        {"dtype": "half", "kv-cache-dtype": "fp8", "enforce-eager": True, "trust-remote-code": False},
        {"speculative-config": '{"method":"ngram","num_speculative_tokens":4}'}, {"served-model-name": ["a", "b"]},
        {"enable-prefix-caching": False, "limit-mm-per-prompt": '{"image":0}', "no-enable-chunked-prefill": True},
        {"lora-modules": ["a=/x", "b=/y"], "enable-lora": True, "max-loras": 2}, {"mm-encoder-tp-mode": "data"},
        {"compilation-config.mode": 3, "limit-mm-per-prompt": {"image": 0}, "allowed-origins": ["a", "b"]},
        {"middleware": ["a.b", "c.d"], "disable-cascade-attn": False, "seed": 1}, {"cpu-offload-gb": 4},
    ],
    "sglang": [
        {}, {"context-length": 4096, "max-running-requests": 32, "chunked-prefill-size": 4096}, {"dtype": "half"},
        {"quantization": "fp8", "kv-cache-dtype": "fp8_e4m3"}, {"speculative-algorithm": "NGRAM"},
        {"lora-paths": ["a=/x", "b=/y"], "enable-lora": True}, {"served-model-name": "a", "trust-remote-code": False},
        {"enable-tf32-matmul": False, "forward-hooks": [{"name": "x"}]}, {"preferred-sampling-params": {"top_k": 1}},
        {"cpu-offload-gb": 4}, {"disable-radix-cache": True, "log-requests": False},
    ],
    "transformers": [
        {}, {"dtype": "bfloat16"}, {"device": "cuda:0"}, {"quantization": "bnb-4bit"},
        {"compile": True, "enable-cors": False}, {"trust-remote-code": False, "non-blocking": True},
        {"attn-implementation": "sdpa", "reasoning": "off"}, {"chat-template-kwargs": {"enable_thinking": False}},
        {"model-timeout": 60, "log-level": "info", "default-seed": 1}, {"a-switch-of-no-version": False},
    ],
}  # fmt: skip
HOST = {"resources": {"host_memory": "64GiB"}}


@dataclass(frozen=True)
class Emitted:
    """One list.

    Attributes:
        argv: without the program, and with a port filled in.
        name: what it shows.
    """

    name: str
    argv: list[str]


def emitted(engine: str) -> list[Emitted]:
    """The lists of an engine whose parser can be read."""
    if engine == "transformers":  # one process, without adapters
        alone = [_one(engine, name, LOCAL[name], {}) for name in ("shared", "whole", "nothing known", "beside others")]
        given = [_one(engine, str(args), SHARED, {"args": args}) for args in ARGS[engine]]
        return [*alone, *given, _one(engine, "on the host", Launch(), {"args": {"device": "cpu"}})]
    launches = [(name, one, {}) for name, one in LOCAL.items()]
    launches += [(name, one, {"resources": {"max_workers": 2}}) for name, one in GANGS.items()]
    if engine == "vllm":
        launches += [(name, one, {"resources": {"max_workers": 2}}) for name, one in DP_GANGS.items()]
    found = [_one(engine, name, launch, {**fields, **ADAPTERS}) for name, launch, fields in launches]
    found += [_one(engine, name, launch, fields) for name, launch, fields in launches]
    found += [_one(engine, str(args), SHARED, {"args": args, **HOST}) for args in ARGS[engine]]
    return [*found, _one(engine, "a revision", SHARED, {"model": "hf:org/name@main"})]


def _one(engine: str, name: str, launch: Launch, fields: dict[str, Any]) -> Emitted:
    wanted = spec(engine, **fields)
    validate(wanted)
    program = engine_for(wanted).process(wanted, launch).argv
    argv = [part.replace("{port}", "8000") for part in program[2:]]
    return Emitted(name, argv)
