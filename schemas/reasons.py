"""Reason codes: why something is not placed, and why something is as it is. Clients match on them."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a worker or a device was passed over, or a whole request refused."""

    NOT_READY = "not_ready"
    CORDONED = "cordoned"
    LABEL_MISMATCH = "label_mismatch"
    NOT_SELECTED = "not_selected"
    OS_ARCH = "os_arch"
    ENGINE_UNSUPPORTED = "engine_unsupported"
    DRIVER_TOO_OLD = "driver_too_old"
    COMPUTE_CAPABILITY = "compute_capability"
    GPU_UNHEALTHY = "gpu_unhealthy"
    GPU_IN_USE = "gpu_in_use"
    NEED_GT_CAPACITY = "need_gt_capacity"
    NEED_GT_FREE = "need_gt_free"
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
    RESERVED = "reserved"  # it would fit, but room is kept for another that waits
    PREEMPTING = "preempting"  # it pushes lower ones out, and waits until they are gone
