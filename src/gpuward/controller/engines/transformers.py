"""`transformers serve`: any Transformers model behind an OpenAI-compatible server, without a special build."""

import re
from typing import Any, Final

from gpuward.controller.domain.placement import Compatibility, Need
from gpuward.controller.engines.base import (
    Analysis,
    EngineProcess,
    Launch,
    SingleEngine,
    SpecError,
    model_reference,
    probe_order,
    refuse_gangs,
    refuse_parallel,
)
from gpuward.schemas.manifest import DeploymentSpec

_ANALYSIS: Final = "gpuward.controller.models.analysis:safetensors_need"
_FOLDER_DEADLINE_S: Final = 60.0
_HUB_DEADLINE_S: Final = 180.0
_ANALYSIS_MEMORY_BYTES: Final = 2 * 2**30  # a header of 64 MiB grows about tenfold as Python objects
_MIB: Final = 2**20

# What comes to the tensors themselves. Key-value cache, activations and the allocator's slack grow with the model;
# a fifth on top and 2 GiB are the figures of the placement cases, which were taken from real models.
WORKING_SHARE: Final = 0.2
GPU_RUNTIME_MIB: Final = 2048  # CUDA context, kernels, cuBLAS workspaces
# Interpreter, PyTorch and the server: 400 MiB resident measured with a model of 0.4 MiB on CPU, more with CUDA.
HOST_RUNTIME_MIB: Final = 1024

_OVERRIDE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_FLOAT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_RESERVED: Final = frozenset({"host", "port", "force-model"})
_FLAG: Final = re.compile(r"^[a-z][a-z0-9-]*$")

_ON_GPU: Final = Compatibility(
    os=frozenset({"linux"}),
    arch=frozenset({"x86_64", "aarch64"}),
    min_driver=(525,),  # the oldest driver that runs CUDA 12 programs
    min_compute_capability=(7, 0),  # Volta: PyTorch's CUDA 12 wheels no longer carry kernels for older ones
)
_ON_CPU: Final = Compatibility(os=frozenset({"linux", "darwin"}), arch=frozenset({"x86_64", "aarch64"}))


class TransformersEngine(SingleEngine):
    """One process that may spread a model's layers over the GPUs that it is given; by itself it asks for one."""

    name = "transformers"

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError for models and args that cannot work."""
        refuse_parallel(spec, self.name)
        refuse_gangs(spec, self.name)
        if spec.model is None or not spec.model.startswith(("path:", "hf:")):
            raise SpecError("model: engine transformers needs model: path:/dir or hf:org/name")
        if spec.model.startswith("path:") and "@" in spec.model:
            raise SpecError("model: transformers takes what follows '@' for a revision; rename the folder")
        _flags(spec)
        resources = spec.resources
        wants_gpus = resources.gpus not in ("auto", 0) or resources.gpu_memory != "auto" or resources.exclusive
        if _on_cpu(spec) and (wants_gpus or spec.placement.gpus):
            raise SpecError("resources: args.device is cpu, so no GPU would be used; remove the GPUs or the device")
        if not _on_cpu(spec) and resources.gpus == 0:
            raise SpecError("resources.gpus: is 0, but the model would look for a GPU; set args: {device: cpu}")

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """What PyTorch's wheels run on."""
        return _ON_CPU if _on_cpu(spec) else _ON_GPU

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """One; none with `device: cpu`."""
        return (0,) if _on_cpu(spec) else (1,)

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Reads the tensors' headers, unless the user said how much memory to take."""
        given = spec.resources.host_memory if _on_cpu(spec) else spec.resources.gpu_memory
        if given != "auto":
            return None
        reference = model_reference(spec) or ""
        if spec.model is not None and spec.model.startswith("path:"):
            return Analysis(_ANALYSIS, {"path": reference}, _FOLDER_DEADLINE_S, _ANALYSIS_MEMORY_BYTES)
        repo, _, revision = reference.partition("@")
        payload = {"repo": repo, "revision": revision or "main"}
        return Analysis(_ANALYSIS, payload, _HUB_DEADLINE_S, _ANALYSIS_MEMORY_BYTES)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """Tensors, working memory, runtime: on the GPUs, or with `device: cpu` on the host."""
        if result is None:
            return Need(memory_mib=None, host_memory_mib=HOST_RUNTIME_MIB, notes=("memory as given by the user",))
        tensor_bytes = _loaded_bytes(spec, result)
        parts = {"tensors": -(-tensor_bytes // _MIB), "working": -(-int(tensor_bytes * WORKING_SHARE) // _MIB)}
        if _on_cpu(spec):
            parts["runtime"] = HOST_RUNTIME_MIB
            return Need(memory_mib=0, host_memory_mib=sum(parts.values()), parts=parts)
        parts["runtime"] = GPU_RUNTIME_MIB
        return Need(memory_mib=sum(parts.values()), host_memory_mib=HOST_RUNTIME_MIB, parts=parts)

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:  # noqa: ARG002 - it takes what it sees
        """`transformers serve MODEL`, bound to this one model: it refuses requests that name another."""
        reference = model_reference(spec) or ""
        env = {"PYTHONUNBUFFERED": "1"}
        if spec.model is not None and spec.model.startswith("path:"):
            env["HF_HUB_OFFLINE"] = "1"
        argv = ("transformers", "serve", reference, "--host", "127.0.0.1", "--port", "{port}", *_flags(spec))
        return EngineProcess(
            argv=argv, needs_port=True, env=env, probe=probe_order(spec, "/health"), request_model=reference
        )


def _on_cpu(spec: DeploymentSpec) -> bool:
    return spec.args.get("device") == "cpu"


def _flags(spec: DeploymentSpec) -> list[str]:
    """The args as flags: true a bare flag, false its `--no-` form, a list the flag repeated, null nothing.

    Raises:
        SpecError: naming the arg.
    """
    flags: list[str] = []
    for name, value in spec.args.items():
        flag = name.replace("_", "-")
        if flag in _RESERVED:
            raise SpecError(f"args.{name}: is set by Gpuward; remove it")
        if not _FLAG.match(flag):
            raise SpecError(f"args.{name}: is not a flag's name; write it without dashes in front, such as dtype")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                continue
            if isinstance(item, bool | list | dict):
                raise SpecError(f"args.{name}: a list may hold numbers and texts only")
            flags += [f"--{flag}", str(item)]
    return flags


def _loaded_bytes(spec: DeploymentSpec, result: Any) -> int:
    """Bytes of the tensors once loaded: as stored, unless `dtype` turns the floating ones into another type."""
    override = _OVERRIDE_BYTES.get(str(spec.args.get("dtype")))
    stored = int(result["tensor_bytes"])
    if override is None:
        return stored
    elements: dict[str, int] = result["elements"]
    return stored + sum(n * (override - _FLOAT_BYTES[t]) for t, n in elements.items() if t in _FLOAT_BYTES)
