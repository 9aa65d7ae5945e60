"""`transformers serve`: an OpenAI-compatible server for any Transformers model, without a special build."""

from dataclasses import replace
from typing import Any, Final

from controller.domain.access.grants import Grant
from controller.domain.model_facts import facts_from_json
from controller.domain.placement import Compatibility, Need, Share
from controller.domain.splits import splits
from controller.engines.arguments.flags import Writing, flags, text
from controller.engines.arguments.options import (
    COMMON_FLAGS,
    Limit,
    Needs,
    Options,
    Privilege,
    Refused,
    each,
    whole_gpus,
)
from controller.engines.arguments.switches import TRANSFORMERS_SWITCHES
from controller.engines.base import (
    Analysis,
    Engine,
    EngineProcess,
    Launch,
    SpecError,
    model_reference,
    probe_order,
    refuse_splits,
)
from controller.engines.estimates.capability import demanded_capability
from controller.engines.estimates.memory import loaded_bytes, mib
from controller.engines.estimates.model_analysis import (
    model_analysis,
    model_fetches,
    offline_env,
    refuse_other_models,
    unknown_need,
    unread_of,
)
from controller.engines.estimates.stated_memory import stated_memory, too_small_note
from controller.engines.servers.table import SERVERS
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

# Memory in addition to the tensors. Key-value cache, activations and the allocator's slack grow with the model. A fifth
# and 2 GiB are the figures of the placement cases, from real models.
WORKING_SHARE: Final = 0.2
GPU_RUNTIME_MIB: Final = 2048  # CUDA context, kernels, cuBLAS workspaces
# Interpreter, PyTorch and the server: 400 MiB resident measured with a model of 0.4 MiB on CPU, more with CUDA.
HOST_RUNTIME_MIB: Final = 1024

_OVERRIDE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}

# On older GPUs it converts the weights to bfloat16, twice as large, or refuses them (quantizer_finegrained_fp8.py and
# quantizer_fbgemm_fp8.py of Transformers).
_CAPABILITIES: Final = {"fp8-weights": (8, 9), "fbgemm_fp8": (9, 0)}
_READ: Final = frozenset({"dtype", "torch-dtype", "device"})
_ON_CPU: Final = Compatibility(
    engine="transformers", os=frozenset({"linux", "darwin"}), arch=frozenset({"x86_64", "aarch64"})
)
_BATCHES: Final = Limit("takes a share of the whole GPU; claim whole GPUs by resources.gpu_memory: all", whole_gpus)
TRANSFORMERS: Final = Options(
    aliases={"torch-dtype": "dtype"},
    limits={
        **each(_BATCHES, "continuous-batching", "cb-num-blocks", "cb-block-size", "cb-max-batch-tokens",
               "cb-max-memory-percent"),
        "host": Refused.PROXY,
        "port": Refused.AGENT,
        "force-model": Refused.MODEL,
    },
    privileged={
        "trust-remote-code": Needs.REMOTE_CODE,
        "decision-config": Needs.READS,
        "attn-implementation": Privilege(
            Grant.CODE, "loads kernels from the hub",
            harmless=frozenset({"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}),
        ),
    },
)  # fmt: skip


class TransformersEngine(Engine):
    """One process that may spread a model's layers over its GPUs, by default on one."""

    name = "transformers"
    server = SERVERS["transformers"]
    own_flags = TRANSFORMERS.names - COMMON_FLAGS

    def validate(self, spec: DeploymentSpec) -> None:
        refuse_other_models(spec, self.name, gguf=False)
        refuse_splits(
            spec, self.name, "engine transformers serves no adapters; use engine vllm or sglang, or remove them"
        )
        _flags(spec)
        resources = spec.resources
        wants_gpus = resources.gpus not in ("auto", 0) or resources.asks_for_a_gpu
        if _on_cpu(spec) and (wants_gpus or spec.placement.gpus):
            raise SpecError("resources: args.device is cpu, so no GPU would be used; remove the GPUs or args.device")
        if not _on_cpu(spec) and resources.gpus == 0:
            raise SpecError("resources.gpus: is 0, but the engine would use a GPU; set args: {device: cpu}")
        TRANSFORMERS.check(spec, _READ)

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """The platforms of PyTorch's wheels."""
        return _ON_CPU if _on_cpu(spec) else self.server.compatibility

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """One; (0,) with `device: cpu`."""
        return (0,) if _on_cpu(spec) else (1,)

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Reads the tensors' headers, unless it runs on the host and the spec states its memory."""
        return None if _on_cpu(spec) and spec.resources.host_memory != "auto" else model_analysis(spec)

    def assumed(self, spec: DeploymentSpec) -> Need | None:
        """With stated memory or exclusive GPUs: the model fits."""
        if _on_cpu(spec) or (stated_memory(spec) is None and not whole_gpus(spec)):
            return None
        notes = ("assumed: the model fits the memory as stated in the spec",)
        return Need(memory_mib=None, host_memory_mib=HOST_RUNTIME_MIB, notes=notes)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """Tensors, working memory and runtime: on the GPUs, or with `device: cpu` on the host."""
        if result is None:
            return Need(memory_mib=None, host_memory_mib=HOST_RUNTIME_MIB, notes=("memory as stated in the spec",))
        facts = facts_from_json(result)
        if facts.format == "gguf":
            return Need(
                None, refused=(Reason.ENGINE_UNSUPPORTED,), notes=("transformers serve does not load GGUF files",)
            )
        if facts.elsewhere is not None and (unread := unread_of(facts)) is not None:
            assumed = self.assumed(spec)
            return unknown_need(unread) if assumed is None else replace(assumed, notes=(*assumed.notes, unread))
        tensor_bytes = loaded_bytes(facts, _OVERRIDE_BYTES.get(text(spec, "dtype", "torch-dtype") or ""))
        parts = {"tensors": mib(tensor_bytes), "working": mib(tensor_bytes * WORKING_SHARE)}
        if _on_cpu(spec):
            parts["runtime"] = HOST_RUNTIME_MIB
            return Need(memory_mib=0, host_memory_mib=sum(parts.values()), parts=parts)
        parts["runtime"] = GPU_RUNTIME_MIB
        least = demanded_capability(spec, facts, _CAPABILITIES)
        need = Need(sum(parts.values()), HOST_RUNTIME_MIB, parts, compute_capability=least)
        given = stated_memory(spec)
        if given is None:
            return need
        # Its cache has no bound, so only the tensors, which it spreads evenly, and its runtime must fit.
        shares = tuple(
            Share(*split.degrees, max(given, own), {"tensors": own - GPU_RUNTIME_MIB, "runtime": GPU_RUNTIME_MIB},
                  least_mib=own)
            for split in splits(spec, self.gpu_counts(spec))
            for own in (mib(tensor_bytes / split.gpus) + GPU_RUNTIME_MIB,)
        )  # fmt: skip
        stated = replace(need, shares=shares, notes=("memory as stated in the spec",))
        return replace(stated, notes=(*stated.notes, *too_small_note(spec, stated)))

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """`transformers serve MODEL`, bound to this model: it refuses requests for another.

        Versions before 5.5 have `--force-model` instead.
        """
        reference = model_reference(spec) or ""
        env = {"PYTHONUNBUFFERED": "1"} | offline_env(spec)
        argv = ("transformers", "serve", reference, "--host", launch.host, "--port", "{port}", *_flags(spec))
        return EngineProcess(
            argv=argv,
            needs_port=True,
            env=env,
            probe=probe_order(spec, "/health"),
            request_model=reference,
            fetches=model_fetches(spec),
        )


def _flags(spec: DeploymentSpec) -> list[str]:
    return flags(spec, Writing(switches=TRANSFORMERS_SWITCHES))


def _on_cpu(spec: DeploymentSpec) -> bool:
    return spec.args.get("device") == "cpu"
