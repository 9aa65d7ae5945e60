"""SGLang: `sglang serve`, on one worker or several. Checked against the documentation and sources of version 0.5."""

import re
from typing import Final

from controller.domain.model_facts import ModelFacts
from controller.domain.placement import Need
from controller.domain.splits import Split
from controller.engines.arguments.flags import figure, stated, text
from controller.engines.arguments.options import whole_gpus
from controller.engines.arguments.sglang_options import SGLANG, UNKNOWN_OFFLOAD
from controller.engines.arguments.switches import SGLANG_SWITCHES
from controller.engines.base import NO_METRICS, EngineProcess, Launch, SpecError, probe_order
from controller.engines.estimates.drafts import sglang_draft
from controller.engines.estimates.host_flags import HostFlags
from controller.engines.estimates.memory import DTYPE_BYTES, Workload, mib
from controller.engines.estimates.model_analysis import model_fetches, offline_env, repository
from controller.engines.estimates.states import SGLANG_SHARE, SGLANG_SLOTS, Cache, pooled_cache
from controller.engines.servers.model_server import (
    CONTEXT_MIB,
    ModelServer,
    outside_parts,
)
from controller.engines.servers.server_table import ServerTable
from controller.engines.servers.table import SERVERS
from schemas.manifest.deployment import DeploymentSpec

WHOLE_GPU: Final = 0.85  # for an exclusive GPU, if it is enough; about its own default
_LEAST: Final = 0.05
_MOST: Final = 0.95
_SHARE: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_SLOTS: Final = re.compile(r"[1-9][0-9]{0,8}")
_POOLING: Final = ("ForSequenceClassification", "RewardModel", "ForRewardModeling", "EmbeddingModel")
# It does not account for activations: they must fit into what its fraction leaves. This is for a prefill chunk.
ACTIVATIONS_MIB: Final = mib(1.5 * 2**30)

_TABLE: Final = ServerTable(
    capabilities={
        "bfloat16": (8, 0),  # below, it computes in float16, which breaks some models
        "awq": (7, 5),
        "awq_marlin": (8, 0),
        "gptq_marlin": (8, 0),
        "compressed-tensors": (7, 5),
        "mxfp4": (8, 0),
        "fp8-weights": (8, 0),  # below 8.9 by Marlin kernels (get_min_capability of its Fp8Config)
        "nvfp4": (10, 0),
        "modelopt-fp8": (8, 9),
        "quark-fp8": (8, 9),
        "fp8-cache": (8, 9),
    },
    unsupported={
        "T5ForConditionalGeneration": "it has no encoder-decoder models",
        "MT5ForConditionalGeneration": "it has no encoder-decoder models",
        "BartForConditionalGeneration": "it has no encoder-decoder models",
        "MBartForConditionalGeneration": "it has no encoder-decoder models",
        "WhisperForConditionalGeneration": "only the newest versions support it",
    },
    options=SGLANG,
    context=("context-length",),
    sequences=("max-running-requests",),
    batch_tokens=("chunked-prefill-size",),
    batch_tokens_default=8192,
    batch_sequences_default=256,
    adapters=("lora-paths",),
    switches=SGLANG_SWITCHES,  # other switches are off by default
    lists=frozenset(
        {
            "forward-hooks",
            "sidecar-args",
            "piecewise-cuda-graph-tokens",
            "decoupled-spec-connect-endpoints",
            "remote-instance-weight-loader-send-weights-group-ports",
        }
    ),
    # For most models it keeps every token, for a few (is_hybrid_swa_model in its sources) four fifths.
    windows=False,
    host=HostFlags(
        weights="cpu-offload-gb",
        copies=True,
        unknown=UNKNOWN_OFFLOAD,
        tiers=("enable-hierarchical-cache", "enable-hicache"),
        tier_gb="hicache-size",
        tier_ratio="hicache-ratio",
        tier_default=2.0,
    ),
    draft=sglang_draft,
    draft_flags=("speculative-draft-model-path", "speculative-draft-model"),
)


class SglangEngine(ModelServer):
    """Takes a fraction of the memory that it finds free, with a configured bound on its cache."""

    name = "sglang"
    server = SERVERS["sglang"]
    table = _TABLE
    own_flags = _TABLE.own_flags

    def _check(self, spec: DeploymentSpec) -> None:
        super()._check(spec)
        if spec.parallel.dp not in ("auto", 1) and spec.resources.max_workers > 1:
            raise SpecError(
                "parallel.dp: sglang keeps all copies of a model on one worker; set resources.max_workers: 1"
            )
        if spec.serving.adapters and ":" in (text(spec, "served-model-name") or repository(spec)[0]):
            raise SpecError(
                "serving.adapters: sglang takes what follows ':' in a model's name as the adapter; "
                "set args: {served-model-name: NAME} without ':'"
            )

    def pools(self, spec: DeploymentSpec, facts: ModelFacts) -> bool:
        """By its flag, or by the name of the architecture (is_generation_model in its sources)."""
        return stated(spec, ("is-embedding",)) is True or any(one.endswith(_POOLING) for one in facts.architectures)

    def cache(self, spec: DeploymentSpec, facts: ModelFacts, split: Split, workload: Workload) -> Cache | None:
        """With a pool of states if layers keep some."""
        if facts.states is None:
            return super().cache(spec, facts, split, workload)
        given_slots = text(spec, "max-mamba-cache-size") or ""
        share: float | None = SGLANG_SHARE
        slots = SGLANG_SLOTS * workload.sequences
        if _SLOTS.fullmatch(given_slots):
            slots, share = int(given_slots), None
        elif stated(spec, ("disable-radix-cache",)) is True:
            slots, share = max(workload.sequences, figure(spec, *_TABLE.sequences) or workload.batch_sequences), None
        elif _SHARE.fullmatch(given := text(spec, "mamba-full-memory-ratio") or "") and float(given):
            share = float(given)
        wished = DTYPE_BYTES.get(facts.states.recurrent_dtype or "", DTYPE_BYTES["float32"])
        size = pooled_cache(facts, split, workload, wished, slots, share)
        return None if size is None else Cache(size)

    def assumed(self, spec: DeploymentSpec) -> Need | None:
        """Not on a shared GPU unless flags bound the cache: it fills free memory."""
        bounded = figure(spec, *_TABLE.context) is not None and figure(spec, *_TABLE.sequences) is not None
        return super().assumed(spec) if bounded or whole_gpus(spec) else None

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """`sglang serve --model-path MODEL`. In a gang the leader serves, and the other ranks answer no requests."""
        model, revision = repository(spec)
        argv = ["sglang", "serve", "--model-path", model]
        if revision is not None:
            argv += ["--revision", revision]
        argv += ["--host", launch.host, "--port", "{port}", "--enable-metrics"]
        for flag, degree in (("tp", launch.tp), ("pp", launch.pp), ("dp", launch.dp)):
            if degree > 1:
                argv += [f"--{flag}-size", str(degree)]
        if launch.workers > 1:
            argv += ["--nnodes", str(launch.workers), "--node-rank", str(launch.rank)]
            leader = f"[{launch.leader}]" if ":" in launch.leader else launch.leader
            argv += ["--dist-init-addr", f"{leader}:{launch.rendezvous_port}"]
        if (fraction := static_fraction(launch)) is not None:
            argv += ["--mem-fraction-static", f"{fraction:.4f}"]
        argv += _cache(spec, launch)
        served = stated(spec, ("served-model-name",))
        name = model if served is None else str(served)
        serves = launch.rank == 0
        if served is None and launch.name and serves:
            argv += ["--served-model-name", launch.name]
        return EngineProcess(
            argv=(*argv, *_TABLE.adapter_flags(spec), *_TABLE.flags(spec)),
            needs_port=True,  # all ranks have a port, for health checks
            env=offline_env(spec),
            fetches=model_fetches(spec, sglang_draft(spec)),
            probe=probe_order(spec, "/health") if serves else None,
            # It accepts any name, which its answers repeat.
            request_model=None if served is None else name,
            adapters={
                adapter: f"{name}:{adapter}" for adapter in spec.serving.adapters
            },  # docs.sglang.io, LoRA serving
            metrics=self.server.metrics if serves else NO_METRICS,
            serves_at_once=_TABLE.serves_at_once(spec),
        )


def static_fraction(launch: Launch) -> float | None:
    """`--mem-fraction-static`: weights and cache as a fraction of the memory that is free before weights are loaded.

    SGLang leaves the rest to activations and graphs (`_profile_available_bytes` in its sources). Claims of other
    instances leave less free memory. If they are not used yet, the bound on tokens keeps the cache from growing into
    them.
    """
    if not launch.gpu_mib or not launch.memory_mib:
        return None
    outside = sum(outside_parts(Split(launch.tp, launch.pp, launch.dp)).values())
    outside += launch.activation_mib or ACTIVATIONS_MIB
    own_mib = launch.need_mib if launch.exclusive else launch.memory_mib
    free_mib = max(launch.gpu_mib - launch.others_mib - CONTEXT_MIB, own_mib)
    return min(max((own_mib - outside) / free_mib, WHOLE_GPU if launch.exclusive else _LEAST), _MOST)


def _cache(spec: DeploymentSpec, launch: Launch) -> list[str]:
    """The flags for the context and, on a shared GPU, for the most tokens in the cache."""
    if launch.context is None:
        return []
    argv = [] if figure(spec, *_TABLE.context) else ["--context-length", str(launch.context)]
    if not launch.exclusive and launch.sequences is not None:
        argv += ["--max-total-tokens", str(launch.context * launch.sequences)]
        if figure(spec, *_TABLE.sequences) is None:
            argv += ["--max-running-requests", str(max(launch.sequences, _TABLE.batch_sequences_default))]
    return argv
