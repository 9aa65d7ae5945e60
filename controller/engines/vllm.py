"""vLLM: `vllm serve`, on one worker or, without Ray, on several (https://github.com/vllm-project/vllm/pull/23691).

Flags and tables follow its documentation and sources, versions 0.10 to 0.29. Several workers need 0.12.
"""

from typing import Final

from controller.domain.placement import Compatibility
from controller.domain.splits import Split
from controller.engines.base import EngineProcess, Launch, probe_order
from controller.engines.drafts import vllm_draft
from controller.engines.flags import figure, stated
from controller.engines.host_flags import HostFlags
from controller.engines.model_analysis import model_fetches, offline_env, repository
from controller.engines.model_server import (
    ModelServer,
    outside_parts,
)
from controller.engines.server_table import ServerTable
from controller.engines.switches import VLLM_SWITCHES
from controller.engines.vllm_options import UNKNOWN_OFFLOAD, VLLM
from schemas.manifest.deployment import DeploymentSpec

# For a GPU that is claimed whole, if it is enough: vLLM's own default, which leaves a margin for what it does not
# account for.
WHOLE_GPU: Final = 0.9
_LEAST: Final = 0.001
_MOST: Final = 0.98  # it starts only if its fraction is free, and a CUDA context already takes some

_TABLE: Final = ServerTable(
    compatibility=Compatibility(
        engine="vllm",
        os=frozenset({"linux"}),
        arch=frozenset({"x86_64", "aarch64"}),
        vendors=frozenset({"nvidia"}),  # ROCm builds exist, but agents support only NVIDIA GPUs
        min_driver=(525,),  # the oldest driver that runs CUDA 12 programs
        min_compute_capability=(7, 0),  # docs.vllm.ai, Installation, GPU: 7.0 or higher
    ),
    # docs.vllm.ai, Quantization, Supported hardware. FP8 weights are W8A8 there, which Ampere lacks. The weight-only
    # path of the Marlin kernels runs some of them on 8.0, slower than the 16-bit originals.
    capabilities={
        "bfloat16": (8, 0),  # below, it refuses bfloat16 unless dtype overrides it
        "awq": (7, 5),
        "awq_marlin": (8, 0),
        "gptq_marlin": (8, 0),
        "compressed-tensors": (7, 5),
        "mxfp4": (8, 0),  # by Marlin kernels; https://github.com/vllm-project/vllm/pull/22259
        "fp8-weights": (8, 9),
        "fp8-cache": (8, 9),
    },
    # Its registry's list of formerly supported models.
    unsupported={
        "MllamaForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "DonutForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "Florence2ForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "BartForConditionalGeneration": "it needs a plugin",
        "MBartForConditionalGeneration": "vLLM 0.10.2 was the last to have it",
        "T5ForConditionalGeneration": "it has no encoder-decoder models",
        "MT5ForConditionalGeneration": "it has no encoder-decoder models",
        "Phi3SmallForCausalLM": "vLLM 0.9.2 was the last to have it",
        "Phi4FlashForCausalLM": "vLLM 0.10.2 was the last to have it",
        "MotifForCausalLM": "vLLM 0.10.2 was the last to have it",
    },
    options=VLLM,
    context=("max-model-len",),
    sequences=("max-num-seqs",),
    batch_tokens=("max-num-batched-tokens",),
    batch_tokens_default=8192,  # on GPUs of 70 GiB and more; 2048 on smaller ones
    batch_sequences_default=256,
    adapters=("lora-modules",),
    switches=VLLM_SWITCHES,
    plain_switches=frozenset(
        {"aggregate-engine-logging", "disable-mm-preprocessor-cache", "enable-multimodal-encoder-data-parallel"}
    ),
    lists=frozenset({"allowed-origins", "allowed-methods", "allowed-headers"}),
    repeated=frozenset({"middleware"}),  # other lists are one flag with several values; of repeated flags the last wins
    no_windows="disable-hybrid-kv-cache-manager",
    host=HostFlags(
        weights="cpu-offload-gb",
        each_gpu=("swap-space",),  # of versions up to 0.11
        each_copy=("kv-offloading-size",),
        unknown=UNKNOWN_OFFLOAD,
    ),
    draft=vllm_draft,
    draft_flags=("speculative-config",),
)


class VllmEngine(ModelServer):
    """Takes exactly its configured fraction of a GPU, and accounts for memory within it."""

    name = "vllm"
    table = _TABLE
    own_flags = _TABLE.own_flags

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """`vllm serve MODEL`. In a gang the leader serves, and the other ranks only compute."""
        model, revision = repository(spec)
        argv = ["vllm", "serve", model]
        if revision is not None:
            argv += ["--revision", revision]
        serves = launch.rank == 0
        argv += ["--host", launch.host, "--port", "{port}"] if serves else ["--headless"]
        for flag, degree in (("tensor", launch.tp), ("pipeline", launch.pp), ("data", launch.dp)):
            if degree > 1:
                argv += [f"--{flag}-parallel-size", str(degree)]
        if launch.workers > 1:
            argv += _gang(launch)
        if (fraction := memory_fraction(launch)) is not None:
            argv += ["--gpu-memory-utilization", f"{fraction:.4f}"]
        # With a context beyond its cache it does not start, and the model's own context may be far longer.
        if launch.context is not None and stated(spec, _TABLE.context) is None:
            argv += ["--max-model-len", str(launch.context)]
        # On large GPUs it would allocate logits for 1024 sequences, more than the need allows for.
        if not launch.exclusive and launch.sequences is not None and figure(spec, *_TABLE.sequences) is None:
            most = max(launch.sequences, _TABLE.batch_sequences_default)
            # It refuses more sequences than one step has tokens.
            argv += ["--max-num-seqs", str(min(most, figure(spec, *_TABLE.batch_tokens) or most))]
        served = stated(spec, ("served-model-name",))
        if served is None and launch.name and serves:
            # Answers carry the first name. The gateway asks by the second one, which engines of earlier versions know.
            argv += ["--served-model-name", launch.name, model]
        names = served if isinstance(served, list) else [served]
        return EngineProcess(
            argv=(*argv, *_TABLE.adapter_flags(spec), *_TABLE.flags(spec)),
            needs_port=serves,
            env=offline_env(spec),
            fetches=model_fetches(spec, vllm_draft(spec)),
            probe=probe_order(spec, "/health") if serves else None,
            request_model=str(names[0]) if names and names[0] is not None else model,
            request_gauges=("vllm:num_requests_running", "vllm:num_requests_waiting") if serves else (),
            queue_gauges=("vllm:num_requests_waiting",) if serves else (),
            cache_gauges=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc") if serves else (),  # the old name
            progress_counters=("vllm:generation_tokens_total", "vllm:prompt_tokens_total") if serves else (),
            serves_at_once=_TABLE.serves_at_once(spec),
            adapters={name: name for name in spec.serving.adapters},
            gpus_by_index=True,  # versions before 0.21 fail on UUIDs: https://github.com/vllm-project/vllm/issues/32569
        )


def memory_fraction(launch: Launch) -> float | None:
    """`--gpu-memory-utilization`: the claim's share of the GPU's memory; None if unknown.

    vLLM takes it of the total memory and accounts for weights, cache and activations within it. The CUDA context,
    graphs and NCCL buffers come on top (`memory_profiling` in its sources), so they are subtracted here.
    """
    if not launch.gpu_mib or not launch.memory_mib:
        return None
    outside = sum(outside_parts(Split(launch.tp, launch.pp, launch.dp)).values())
    own_mib = (launch.need_mib if launch.exclusive else launch.memory_mib) - outside
    # On a small GPU what comes on top is more than the tenth that the default leaves.
    whole = min(WHOLE_GPU, (launch.gpu_mib - outside) / launch.gpu_mib)
    return min(max(own_mib / launch.gpu_mib, whole if launch.exclusive else _LEAST, _LEAST), _MOST)


def _gang(launch: Launch) -> list[str]:
    """The flags by which ranks find one another. docs.vllm.ai: Parallelism and scaling; Data parallel deployment."""
    port = str(launch.rendezvous_port)
    if launch.dp == 1:
        rendezvous = ["--master-addr", launch.leader, "--master-port", port]
        return ["--nnodes", str(launch.workers), "--node-rank", str(launch.rank), *rendezvous]
    local = launch.dp // launch.workers
    first = ["--data-parallel-start-rank", str(launch.rank * local)] if launch.rank else []
    rendezvous = ["--data-parallel-address", launch.leader, "--data-parallel-rpc-port", port]
    return ["--data-parallel-size-local", str(local), *first, *rendezvous]
