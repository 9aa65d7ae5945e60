"""Objects of the API as a controller returns them."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]


def now_text(age_s: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat()


def deployment(
    name: str, phase: str = "running", *, generation: int = 1, spec: Json | None = None, **status: Any
) -> Json:
    spec = {"engine": "simulated", "replicas": 1, **(spec or {})}
    wanted = spec["replicas"]["min"] if isinstance(spec["replicas"], dict) else spec["replicas"]
    return {
        "kind": "Deployment",
        "name": name,
        "uid": str(uuid.uuid4()),
        "generation": generation,
        "created_at": now_text(90),
        "deleted_at": None,
        "spec": spec,
        "status": {"phase": phase, "ready": 0, "wanted": wanted, "observed_generation": generation, **status},
    }


def instance(of: Json, number: int = 1, phase: str = "running", **status: Any) -> Json:
    name = f"{of['name']}-{number}"
    return {
        "kind": "Instance",
        "name": name,
        "uid": name,
        "generation": 1,
        "created_at": now_text(60),
        "spec": {"deployment": of["name"], "deployment_uid": of["uid"], "revision": 1, "engine": "simulated"},
        "status": {"phase": phase, "phase_since": now_text(50), **status},
    }


def worker(name: str, state: str = "ready", **status: Any) -> Json:
    phase = state if state in ("joining", "ready", "unreachable", "lost") else "ready"
    return {
        "kind": "Worker",
        "name": name,
        "uid": str(uuid.uuid4()),
        "created_at": now_text(3 * 86400),
        "spec": {},
        "status": {
            "phase": phase,
            "state": state,
            "connected": True,
            "gpus": 8,
            "gpus_known": True,
            "memory_mib": 655360,
            "claimed_mib": 327680,
            "free_mib": 327680,
            **status,
        },
    }


def gpu(uid: str, on: str, index: int = 0, **status: Any) -> Json:
    facts = {"worker": on, "index": index, "model": "H100", "memory_mib": 81920, "claimed_mib": 8192}
    facts |= {"free_mib": 73728, "health": "ok"}
    return {"kind": "Gpu", "name": uid, "uid": uid, "spec": {}, "status": {**facts, **status}}


def policy(name: str, **spec: Any) -> Json:
    return {
        "kind": "UtilizationPolicy",
        "name": name,
        "uid": str(uuid.uuid4()),
        "generation": 1,
        "created_at": now_text(90),
        "spec": {"min_gpu_utilization": 50, "time_window": 60, "gpus": "all", "action": "stop", **spec},
        "status": {},
    }
