"""vLLM: `vllm serve`, on one worker or, without Ray, on several (https://github.com/vllm-project/vllm/pull/23691).

Flags and tables are those of its documentation and sources, versions 0.10 to 0.29; several workers need 0.12.
"""

from typing import Final

from controller.domain.placement import Compatibility
from controller.domain.splits import Split
from controller.engines.base import EngineProcess, Launch, probe_order
from controller.engines.flags import figure, stated
from controller.engines.served import ModelServer, ServerTable, outside_parts
from controller.engines.source import repository
from schemas.manifest.deployment import DeploymentSpec

_BY_PARALLEL: Final = "state it under parallel"
_BY_PLACEMENT: Final = "it follows from where the instance is placed"
_BY_RESOURCES: Final = "state resources.gpu_memory instead, which is what is then claimed"

# Of a GPU that is claimed whole, if that is enough: vLLM's own default, which leaves room for what it does not account
# for.
WHOLE_GPU: Final = 0.9
_LEAST: Final = 0.01
_MOST: Final = 0.98  # it does not start where less is free than it is told to take, and a context is taken already

_TABLE: Final = ServerTable(
    compatibility=Compatibility(
        engine="vllm",
        os=frozenset({"linux"}),
        arch=frozenset({"x86_64", "aarch64"}),
        vendors=frozenset({"nvidia"}),  # its ROCm builds exist, but agents place on NVIDIA GPUs only
        min_driver=(525,),  # the oldest driver that runs CUDA 12 programs
        min_compute_capability=(7, 0),  # docs.vllm.ai, Installation, GPU: 7.0 or higher
    ),
    # docs.vllm.ai, Quantization, Supported hardware. FP8 weights are W8A8 there, which Ampere lacks; the weight-only
    # path of the Marlin kernels would run some of them on 8.0, slower than their 16 bit originals, and not all.
    capabilities={
        "bfloat16": (8, 0),  # it refuses bfloat16 below, unless dtype says otherwise
        "awq": (7, 5),
        "awq_marlin": (8, 0),
        "gptq_marlin": (8, 0),
        "compressed-tensors": (7, 5),
        "mxfp4": (8, 0),  # by Marlin kernels; https://github.com/vllm-project/vllm/pull/22259
        "fp8-weights": (8, 9),
        "fp8-cache": (8, 9),
    },
    # Its registry's list of what it once supported.
    unsupported={
        "MllamaForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "DonutForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "Florence2ForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "BartForConditionalGeneration": "it needs a plugin",
        "MBartForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "T5ForConditionalGeneration": "models of an encoder and a decoder are not among those it has",
        "MT5ForConditionalGeneration": "models of an encoder and a decoder are not among those it has",
        "Phi3SmallForCausalLM": "vLLM 0.9.2 was the last to have it",
        "Phi4FlashForCausalLM": "vLLM 0.10.2 was the last to have it",
        "MotifForCausalLM": "vLLM 0.10.2 was the last to have it",
    },
    reserved={
        "host": "the agent's proxy speaks for it",
        "port": "the agent chooses it",
        "model": "state it as model",
        "revision": "state it as model: hf:org/name@revision",
        "tensor-parallel-size": _BY_PARALLEL,
        "pipeline-parallel-size": _BY_PARALLEL,
        "data-parallel-size": _BY_PARALLEL,
        "data-parallel-size-local": _BY_PLACEMENT,
        "data-parallel-start-rank": _BY_PLACEMENT,
        "data-parallel-address": _BY_PLACEMENT,
        "data-parallel-rpc-port": _BY_PLACEMENT,
        "distributed-executor-backend": _BY_PLACEMENT,
        "nnodes": _BY_PLACEMENT,
        "node-rank": _BY_PLACEMENT,
        "master-addr": _BY_PLACEMENT,
        "master-port": _BY_PLACEMENT,
        "headless": _BY_PLACEMENT,
        "gpu-memory-utilization": _BY_RESOURCES,
        "kv-cache-memory-bytes": _BY_RESOURCES,
        "device": "engine vllm runs on GPUs",
        "config": "write what is in the file under args",
        "uds": "the agent's proxy asks at a port",
    },
    context=("max-model-len",),
    sequences=("max-num-seqs",),
    batch_tokens=("max-num-batched-tokens",),
    batch_tokens_default=8192,  # on GPUs of 70 GiB and more; 2048 on smaller ones
    batch_sequences_default=256,
    adapters=("lora-modules",),
    repeated=frozenset({"middleware"}),  # every other list is one flag with several values, of which the last counts
    no_windows="disable-hybrid-kv-cache-manager",
)


class VllmEngine(ModelServer):
    """Takes from a GPU exactly the fraction that it is told, with which it does its own accounts."""

    name = "vllm"
    table = _TABLE
    own_flags = _TABLE.own_flags

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """`vllm serve MODEL`; of a gang the leader serves, and the others only compute."""
        model, revision = repository(spec)
        argv = ["vllm", "serve", model]
        if revision is not None:
            argv += ["--revision", revision]
        serves = launch.rank == 0
        argv += ["--host", "127.0.0.1", "--port", "{port}"] if serves else ["--headless"]
        for flag, degree in (("tensor", launch.tp), ("pipeline", launch.pp), ("data", launch.dp)):
            if degree > 1:
                argv += [f"--{flag}-parallel-size", str(degree)]
        if launch.workers > 1:
            argv += _gang(launch)
        if (fraction := memory_fraction(launch)) is not None:
            argv += ["--gpu-memory-utilization", f"{fraction:.4f}"]
        # The model's own context may be far longer than its cache has room for, and then it would not start.
        if launch.context is not None and figure(spec, *_TABLE.context) is None:
            argv += ["--max-model-len", str(launch.context)]
        # On large GPUs it would make room for the logits of 1024, which are more than were reckoned for.
        if not launch.exclusive and launch.sequences is not None and figure(spec, *_TABLE.sequences) is None:
            most = max(launch.sequences, _TABLE.batch_sequences_default)
            # It refuses more sequences than one step has tokens.
            argv += ["--max-num-seqs", str(min(most, figure(spec, *_TABLE.batch_tokens) or most))]
        served = stated(spec, ("served-model-name",))
        names = served if isinstance(served, list) else [served]
        return EngineProcess(
            argv=(*argv, *_TABLE.flags(spec)),
            needs_port=serves,
            env={"HF_HUB_OFFLINE": "1"} if spec.model is not None and spec.model.startswith("path:") else {},
            probe=probe_order(spec, "/health") if serves else None,
            request_model=str(names[0]) if names and names[0] is not None else model,
            request_gauges=("vllm:num_requests_running", "vllm:num_requests_waiting") if serves else (),
            gpus_by_index=True,  # versions before 0.21 fail on UUIDs: https://github.com/vllm-project/vllm/issues/32569
        )


def memory_fraction(launch: Launch) -> float | None:
    """`--gpu-memory-utilization`: the claim's share of the GPU's memory; None where that is not known.

    vLLM takes it of the total memory and accounts for weights, cache and activations within it; a context, graphs and
    what NCCL holds come on top (`memory_profiling` in its sources), and so are left out of it here.
    """
    if not launch.gpu_mib or not launch.memory_mib:
        return None
    outside = sum(outside_parts(Split(launch.tp, launch.pp, launch.dp)).values())
    own_mib = (launch.need_mib if launch.exclusive else launch.memory_mib) - outside
    return min(max(own_mib / launch.gpu_mib, WHOLE_GPU if launch.exclusive else _LEAST), _MOST)


def _gang(launch: Launch) -> list[str]:
    """How this rank finds the others. docs.vllm.ai: Parallelism and scaling; Data parallel deployment."""
    port = str(launch.rendezvous_port)
    if launch.dp == 1:
        rendezvous = ["--master-addr", launch.leader, "--master-port", port]
        return ["--nnodes", str(launch.workers), "--node-rank", str(launch.rank), *rendezvous]
    local = launch.dp // launch.workers
    first = ["--data-parallel-start-rank", str(launch.rank * local)] if launch.rank else []
    rendezvous = ["--data-parallel-address", launch.leader, "--data-parallel-rpc-port", port]
    return ["--data-parallel-size-local", str(local), *first, *rendezvous]
