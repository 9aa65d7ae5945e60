"""Reason codes of placement: why a worker or GPU is ruled out. `status_reasons.py` has the table of all codes.

Clients match on the codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class ReasonText:
    """The meaning of a reason code, and the remedy, in a sentence each."""

    meaning: str
    remedy: str


class Reason(StrEnum):
    """Why a worker or a device is ruled out, or a request is refused."""

    NOT_READY = "not_ready"
    CORDONED = "cordoned"
    DISK_PRESSURE = "disk_pressure"
    LABEL_MISMATCH = "label_mismatch"
    NOT_SELECTED = "not_selected"
    OS_ARCH = "os_arch"
    RUNTIME_UNSUPPORTED = "runtime_unsupported"
    ENGINE_MISSING = "engine_missing"
    ENGINE_UNSUPPORTED = "engine_unsupported"
    DRIVER_TOO_OLD = "driver_too_old"
    COMPUTE_CAPABILITY = "compute_capability"
    GPU_MODEL = "gpu_model"
    MIG_MODE = "mig_mode"
    GPU_CORDONED = "gpu_cordoned"
    GPU_UNHEALTHY = "gpu_unhealthy"
    GPU_IN_USE = "gpu_in_use"
    NEED_GT_CAPACITY = "need_gt_capacity"
    NEED_GT_FREE = "need_gt_free"
    NEED_GT_STATED = "need_gt_stated"
    EXCLUSIVE_CONFLICT = "exclusive_conflict"
    HEADS_INDIVISIBLE = "heads_indivisible"
    VOCAB_INDIVISIBLE = "vocab_indivisible"
    VISION_INDIVISIBLE = "vision_indivisible"
    MIXED_ACCELERATORS = "mixed_accelerators"
    COUNT_MISMATCH = "count_mismatch"
    HOST_MEMORY = "host_memory"
    CPU = "cpu"
    METADATA_UNKNOWN = "metadata_unknown"
    NOT_ALL_SELECTED_READY = "not_all_selected_ready"
    POLICY_IDLE = "policy_idle"
    RESERVED = "reserved"
    PREEMPTING = "preempting"


# The claims of others may be in the way.
HELD_BY_OTHERS: Final = frozenset({
    Reason.NEED_GT_FREE, Reason.EXCLUSIVE_CONFLICT, Reason.GPU_IN_USE, Reason.MIXED_ACCELERATORS, Reason.COUNT_MISMATCH,
    Reason.HOST_MEMORY, Reason.CPU,
})  # fmt: skip
# The end of another instance does not help an instance that is pending for such a reason.
NEVER_FREED: Final = frozenset({
    Reason.NOT_READY, Reason.CORDONED, Reason.DISK_PRESSURE, Reason.LABEL_MISMATCH, Reason.NOT_SELECTED,
    Reason.OS_ARCH,
    Reason.RUNTIME_UNSUPPORTED, Reason.ENGINE_MISSING, Reason.ENGINE_UNSUPPORTED, Reason.DRIVER_TOO_OLD,
    Reason.COMPUTE_CAPABILITY, Reason.GPU_MODEL, Reason.MIG_MODE, Reason.GPU_CORDONED, Reason.GPU_UNHEALTHY,
    Reason.NEED_GT_CAPACITY, Reason.NEED_GT_STATED, Reason.HEADS_INDIVISIBLE, Reason.VOCAB_INDIVISIBLE,
    Reason.VISION_INDIVISIBLE, Reason.METADATA_UNKNOWN, Reason.NOT_ALL_SELECTED_READY,
})  # fmt: skip
_PARALLEL_REMEDY: Final = "Use another `parallel.tp` or another number of GPUs."
PLACEMENT: Final[Mapping[str, ReasonText]] = {
    Reason.NOT_READY: ReasonText(
        "The worker is joining, unreachable or lost, or no worker or GPU of that name is known.",
        "Start its agent again, or wait: the instance is placed once a worker is ready.",
    ),
    Reason.CORDONED: ReasonText(
        "An operator has cordoned or drained the worker, so nothing new is placed on it.",
        "Run `gpuward uncordon WORKER`.",
    ),
    Reason.DISK_PRESSURE: ReasonText(
        "The disk of the worker is full where its agent's data folder is, so nothing new is placed on it.",
        "Free some space on its host, or move the agent's data folder; `gpuward describe worker NAME` shows what was "
        "free. Placement goes on by itself.",
    ),
    Reason.LABEL_MISMATCH: ReasonText(
        "The worker lacks a label that `placement.labels` requires.",
        "Change `placement.labels`, or start the agent with `--label KEY=VALUE`.",
    ),
    Reason.NOT_SELECTED: ReasonText(
        "The worker or GPU is not among those that `placement.workers` or `placement.gpus` names.",
        "Name it as well, or remove the selection.",
    ),
    Reason.OS_ARCH: ReasonText(
        "The engine does not run on the operating system or architecture of the worker.",
        "Use another engine, or add a worker of a supported platform.",
    ),
    Reason.RUNTIME_UNSUPPORTED: ReasonText(
        "The worker cannot run containers, or cannot give them GPUs, and the deployment has `runtime: docker`.",
        "Run `gpuward doctor` on its host: install Docker and NVIDIA's container toolkit, or use `runtime: process`.",
    ),
    Reason.ENGINE_MISSING: ReasonText(
        "The program of the engine, or of the command, is not installed on the worker.",
        "Run the command of the message where the agent runs, or use another engine. `gpuward describe worker NAME` "
        "lists the engines of a worker.",
    ),
    Reason.ENGINE_UNSUPPORTED: ReasonText(
        "The engine uses no GPU of the worker, as with a build without CUDA (`llama-cpp:no-gpu`), "
        "or this version cannot run the deployment.",
        "Install a build for the GPUs of the worker, llama.cpp with CUDA, or use another engine.",
    ),
    Reason.DRIVER_TOO_OLD: ReasonText(
        "The GPU driver of the worker is older than the engine needs.",
        "Update the driver, or use another engine or worker.",
    ),
    Reason.COMPUTE_CAPABILITY: ReasonText(
        "The GPU has another compute capability than the engine, the data type of the model or the spec needs.",
        "Use another GPU, engine or data type, or change `resources.compute_capability`.",
    ),
    Reason.GPU_MODEL: ReasonText(
        "The GPU is of a model that `resources.gpu_models` does not name.",
        "Name it as well, or remove `resources.gpu_models`.",
    ),
    Reason.MIG_MODE: ReasonText(
        "The GPU is in MIG mode, in which only its slices can be claimed.",
        "Make slices on it, turn MIG mode off on its host (`nvidia-smi -i INDEX -mig 0`), or use another GPU.",
    ),
    Reason.GPU_CORDONED: ReasonText(
        "An operator has cordoned the GPU, so nothing new is placed on it.",
        "Run `gpuward uncordon WORKER --gpu UUID`, or use another GPU.",
    ),
    Reason.GPU_UNHEALTHY: ReasonText(
        "The GPU is unhealthy, or its health is unknown.",
        "Check it with `gpuward describe gpu UUID`; repair it or use another one.",
    ),
    Reason.GPU_IN_USE: ReasonText(
        "A process that Gpuward did not start uses memory of the GPU.",
        "Stop that process, or reserve its memory with `--reserve-gpu-memory` of the agent.",
    ),
    Reason.NEED_GT_CAPACITY: ReasonText(
        "The GPU has less memory than the instance needs, even when it is empty, or less than `min_gpu_memory`.",
        "Use more or larger GPUs, or ask for less memory, for example with a shorter context.",
    ),
    Reason.NEED_GT_FREE: ReasonText(
        "The instance needs more memory than is free on the GPU now.",
        "Wait, stop other instances, or raise the priority and allow preemption.",
    ),
    Reason.NEED_GT_STATED: ReasonText(
        "The model needs more memory on each GPU than `resources.gpu_memory` states.",
        "State more memory, more GPUs or a shorter context, or leave `gpu_memory` out: then it is estimated.",
    ),
    Reason.EXCLUSIVE_CONFLICT: ReasonText(
        "The instance needs a whole GPU and others share this one, or another instance holds it exclusively.",
        "Wait, stop the other instances, or set `exclusive: false` with a size in `gpu_memory`.",
    ),
    Reason.HEADS_INDIVISIBLE: ReasonText(
        "The attention heads of the model cannot be divided by the tensor parallelism.", _PARALLEL_REMEDY
    ),
    Reason.VOCAB_INDIVISIBLE: ReasonText(
        "The vocabulary of the model cannot be divided by the tensor parallelism.", _PARALLEL_REMEDY
    ),
    Reason.VISION_INDIVISIBLE: ReasonText(
        "The attention heads of the vision encoder cannot be divided by the tensor parallelism.", _PARALLEL_REMEDY
    ),
    Reason.MIXED_ACCELERATORS: ReasonText(
        "There are enough GPUs, but too few of one vendor that are of one model or about equally large.",
        "Ask for fewer GPUs, or name enough of one vendor in `placement.gpus`. A MIG slice serves with no other GPU.",
    ),
    Reason.COUNT_MISMATCH: ReasonText(
        "Too few suitable GPUs or workers are left, or the stated numbers of GPUs contradict each other.",
        "Ask for fewer GPUs, raise `resources.max_workers`, or make the numbers equal.",
    ),
    Reason.HOST_MEMORY: ReasonText(
        "The instance needs more main memory than is free on the worker.",
        "Set `resources.host_memory` lower, or free memory on the worker.",
    ),
    Reason.CPU: ReasonText(
        "The instance needs more CPU cores than are free on the worker.",
        "Set `resources.cpus` lower, or free cores on the worker.",
    ),
    Reason.METADATA_UNKNOWN: ReasonText(
        "The model's need is unknown: its files cannot be read, or this version does not know a part of them.",
        "Check the model name, the access token and the way to the hub (`HF_ENDPOINT`), or set `resources.gpu_memory`.",
    ),
    Reason.NOT_ALL_SELECTED_READY: ReasonText(
        "A selected worker or GPU would do, but another selected one is not ready.",
        "Bring the other one back, or remove it from `placement`.",
    ),
    Reason.POLICY_IDLE: ReasonText(
        "A utilization policy stopped the deployment or some of its replicas because they were idle.",
        "Run `gpuward start NAME` to start it again, or change the policy.",
    ),
    Reason.RESERVED: ReasonText(
        "The instance would fit, but the capacity is reserved for another pending instance.",
        "Wait, or raise the priority.",
    ),
    Reason.PREEMPTING: ReasonText(
        "The instance preempts instances of lower priority and waits until they have stopped.",
        "Wait: it is placed when they have stopped.",
    ),
}
