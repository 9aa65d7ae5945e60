"""vLLM: `vllm serve`, on one worker or, without Ray, on several (https://github.com/vllm-project/vllm/pull/23691).

Flags and tables follow its documentation and sources, versions 0.10 to 0.29. Several workers need 0.12.
"""

import re
from typing import Final

from controller.domain.model_facts import ModelFacts
from controller.domain.splits import Split
from controller.engines.arguments.flags import figure, stated, text
from controller.engines.arguments.switches import VLLM_SWITCHES
from controller.engines.arguments.vllm_options import UNKNOWN_OFFLOAD, VLLM
from controller.engines.base import NO_METRICS, EngineProcess, Launch, probe_order
from controller.engines.estimates.drafts import vllm_draft, vllm_speculation
from controller.engines.estimates.host_flags import HostFlags
from controller.engines.estimates.memory import DTYPE_BYTES, MIB, Workload, cached_layers
from controller.engines.estimates.model_analysis import model_fetches, offline_env, repository
from controller.engines.estimates.states import BLOCK_TOKENS, Cache, StateRules, paged_cache
from controller.engines.servers.model_server import (
    ModelServer,
    outside_parts,
    working_bytes,
)
from controller.engines.servers.server_table import ServerTable
from controller.engines.servers.table import SERVERS
from controller.engines.servers.vllm_versions import pools, refusal
from schemas.manifest.deployment import DeploymentSpec

# For an exclusive GPU, if it is enough: vLLM's own default, which leaves a margin for memory outside its accounting.
WHOLE_GPU: Final = 0.9
_MOST_DRAFTED: Final = 1000
_BLOCK: Final = re.compile(r"[1-9][0-9]{0,4}")
_LEAST: Final = 0.001
_MOST: Final = 0.98  # it starts only if its fraction is free, and a CUDA context already takes some

_TABLE: Final = ServerTable(
    # get_min_capability of its quantization configs. Below 8.9, weights of FP8 and NVFP4 are multiplied by Marlin's
    # weight-only kernels; Quark's FP8 has no such way.
    capabilities={
        "bfloat16": (8, 0),  # below, it refuses bfloat16 unless dtype overrides it
        "awq": (7, 5),
        "awq_marlin": (8, 0),
        "gptq_marlin": (8, 0),
        "compressed-tensors": (7, 5),
        "mxfp4": (8, 0),  # by Marlin kernels; https://github.com/vllm-project/vllm/pull/22259
        "fp8-weights": (7, 5),
        "nvfp4": (7, 5),
        "fbgemm_fp8": (8, 0),
        "modelopt-fp8": (8, 0),
        "quark-fp8": (8, 9),
        "fp8-cache": (8, 9),
    },
    unsupported={},  # by its registry: vllm_versions.py
    options=VLLM,
    context=("max-model-len",),
    sequences=("max-num-seqs",),
    batch_tokens=("max-num-batched-tokens",),
    batch_tokens_default=8192,  # on GPUs of 70 GiB and more; else 2048
    batch_sequences_default=256,
    adapters=("lora-modules",),
    switches=VLLM_SWITCHES,
    plain_switches=frozenset(
        {"aggregate-engine-logging", "disable-mm-preprocessor-cache", "enable-multimodal-encoder-data-parallel"}
    ),
    lists=frozenset({"allowed-origins", "allowed-methods", "allowed-headers"}),
    repeated=frozenset(
        {"middleware"}
    ),  # other lists are one flag with several values; of repeated flags the last counts
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
    server = SERVERS["vllm"]
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
        if (sequences := most_sequences(spec, launch)) is not None:
            argv += ["--max-num-seqs", str(sequences)]
        served = stated(spec, ("served-model-name",))
        if served is None and launch.name and serves:
            # Answers have the first name. The gateway uses the second, which engines of earlier versions know.
            argv += ["--served-model-name", launch.name, model]
        names = served if isinstance(served, list) else [served]
        return EngineProcess(
            argv=(*argv, *_TABLE.adapter_flags(spec), *_TABLE.flags(spec)),
            needs_port=serves,
            env=offline_env(spec),
            fetches=model_fetches(spec, vllm_draft(spec)),
            probe=probe_order(spec, "/health") if serves else None,
            request_model=str(names[0]) if names and names[0] is not None else model,
            metrics=self.server.metrics if serves else NO_METRICS,
            serves_at_once=_serves_at_once(spec, launch, sequences),
            adapters={name: name for name in spec.serving.adapters},
            gpus_by_index=True,  # versions before 0.21 fail on UUIDs: https://github.com/vllm-project/vllm/issues/32569
        )

    def pools(self, spec: DeploymentSpec, facts: ModelFacts) -> bool:
        return pools(spec, facts)

    def cache(self, spec: DeploymentSpec, facts: ModelFacts, split: Split, workload: Workload) -> Cache | None:
        """In blocks if layers keep states."""
        if facts.states is None:
            return super().cache(spec, facts, split, workload)
        return paged_cache(facts, split, workload, _state_rules(spec, facts))

    def _refusal(self, spec: DeploymentSpec, facts: ModelFacts) -> str | None:
        return super()._refusal(spec, facts) or refusal(spec, facts.architectures)


def most_sequences(spec: DeploymentSpec, launch: Launch) -> int | None:
    """`--max-num-seqs`; None: the spec states it, or the server's default is right.

    On large GPUs the default allocates logits for 1024 sequences, more than the need allows. If layers keep states, it
    does not start with more sequences than its cache has blocks.
    """
    if figure(spec, *_TABLE.sequences) is not None or launch.sequences is None:
        return None
    if launch.exclusive and not launch.block_bytes:
        return None
    most = max(launch.sequences, _TABLE.batch_sequences_default)
    if launch.block_bytes:
        most = min(most, max(_cache_mib(launch) * MIB // launch.block_bytes, 1))
    # It refuses more sequences than tokens of a step.
    return min(most, figure(spec, *_TABLE.batch_tokens) or most)


def _cache_mib(launch: Launch) -> int:
    """The memory of its fraction of the GPU for its cache, on an exclusive GPU more than the need's."""
    fraction = memory_fraction(launch) if launch.exclusive else None
    if fraction is None:
        return launch.cache_mib
    outside = sum(outside_parts(Split(launch.tp, launch.pp, launch.dp)).values())
    return launch.cache_mib + int(fraction * launch.gpu_mib) + outside - launch.need_mib


def _serves_at_once(spec: DeploymentSpec, launch: Launch, sequences: int | None) -> int:
    if sequences is None or not launch.block_bytes:
        return _TABLE.serves_at_once(spec)
    return sequences * launch.dp


def _state_rules(spec: DeploymentSpec, facts: ModelFacts) -> StateRules:
    states, working = facts.states, working_bytes(spec, facts)
    conv = DTYPE_BYTES.get(text(spec, "mamba-cache-dtype") or "", working)
    wished = text(spec, "mamba-ssm-cache-dtype")
    if wished in (None, "auto"):
        wished = None if states is None else states.recurrent_dtype
    drafted = vllm_speculation(spec).get("num_speculative_tokens")
    mode, prefixes = text(spec, "mamba-cache-mode"), stated(spec, ("enable-prefix-caching",))
    if prefixes is None and stated(spec, ("no-enable-prefix-caching",)) is True:
        prefixes = False
    # By default it caches prefixes of models with attention alone (is_prefix_caching_supported).
    cached = bool(cached_layers(facts)) if prefixes is None else prefixes is True
    each: int | None = 2 if cached else 1
    block = text(spec, "block-size") or ""
    return StateRules(
        conv_bytes=conv,
        recurrent_bytes=DTYPE_BYTES.get(wished or "", conv),
        each=None if cached and mode == "all" else each,
        speculative=drafted if isinstance(drafted, int) and 0 < drafted < _MOST_DRAFTED else 0,
        block_tokens=int(block) if _BLOCK.fullmatch(block) else BLOCK_TOKENS,
        sequences=figure(spec, *_TABLE.sequences) or 0,
    )


def memory_fraction(launch: Launch) -> float | None:
    """`--gpu-memory-utilization`: the claim's share of the GPU's memory; None if unknown.

    vLLM takes it of the total memory and accounts for weights, cache and activations within it. The CUDA context,
    graphs and NCCL buffers are outside (`memory_profiling` in its sources), so they are subtracted here.
    """
    if not launch.gpu_mib or not launch.memory_mib:
        return None
    outside = sum(outside_parts(Split(launch.tp, launch.pp, launch.dp)).values())
    own_mib = (launch.need_mib if launch.exclusive else launch.memory_mib) - outside
    # On a small GPU the memory outside is more than the tenth that the default leaves.
    all_of_it = min(WHOLE_GPU, (launch.gpu_mib - outside) / launch.gpu_mib)
    return min(max(own_mib / launch.gpu_mib, all_of_it if launch.exclusive else _LEAST, _LEAST), _MOST)


def _gang(launch: Launch) -> list[str]:
    """The flags by which ranks meet. docs.vllm.ai: Parallelism and scaling; Data parallel deployment."""
    port = str(launch.rendezvous_port)
    if launch.dp == 1:
        rendezvous = ["--master-addr", launch.leader, "--master-port", port]
        return ["--nnodes", str(launch.workers), "--node-rank", str(launch.rank), *rendezvous]
    local = launch.dp // launch.workers
    first = ["--data-parallel-start-rank", str(launch.rank * local)] if launch.rank else []
    rendezvous = ["--data-parallel-address", launch.leader, "--data-parallel-rpc-port", port]
    return ["--data-parallel-size-local", str(local), *first, *rendezvous]
