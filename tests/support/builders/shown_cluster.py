"""Three workers and their GPUs as the API returns them: one is busy, one idle in a dry run, one lost, one unknown."""

from support.builders.api_objects import Json, deployment, gpu, instance, now_text, worker

_JUDGED = {"policy": "stop-idle", "policy_generation": 1, "action": "stop", "since": now_text(5), "acts": "would stop"}


def uuid(letter: str) -> str:
    """A GPU's, of one letter."""
    return f"GPU-{letter * 8}-0000-0000-0000-000000000000"


def _claim(of: str, memory_mib: int = 20480) -> Json:
    return {
        "instance": f"{of}-1", "deployment": of, "memory_mib": memory_mib, "exclusive": False, "epoch": 1
    }  # fmt: skip


CHAT, CODE = deployment("chat", ready=1), deployment("code", ready=1)


def objects() -> list[Json]:
    """A cluster, with times as they are now."""
    low = {**_JUDGED, "verdict": "busy", "low_since": now_text(245), "due_at": now_text(-415)}
    idle = {**_JUDGED, "verdict": "idle", "dry_run": True, "low_since": now_text(725)}
    return [
        worker("gpu-1", gpus=2, memory_mib=163840, claimed_mib=81920),
        worker("gpu-2", "lost", gpus=1, memory_mib=81920, claimed_mib=20480),
        worker("spare", gpus=0, gpus_known=False, memory_mib=0, claimed_mib=0),
        instance(CHAT, 1, worker="gpu-1", gpus=[uuid("a")], utilization=low),
        instance(CODE, 1, worker="gpu-1", gpus=[uuid("b")], utilization=idle),
        instance(CODE, 2, "pending"),
        gpu(uuid("a"), "gpu-1", claims=[_claim("chat")], used_mib=10240, claimed_mib=20480, utilization=3.0),
        gpu(uuid("b"), "gpu-1", 1, claims=[_claim("code", 61440)], used_mib=61440, claimed_mib=61440, utilization=90.0),
        gpu(uuid("c"), "gpu-2", claims=[_claim("long-name")], claimed_mib=20480, model="L4"),
    ]
