"""Args of the simulated engine that earlier versions knew. Stored specs may have them; they have no effect."""

from typing import Final

from schemas.manifest.deployment import DeploymentSpec

RETIRED: Final = frozenset({
    "token_seconds", "wait_seconds", "die_after_tokens", "refuse", "silent", "usage", "slots", "kv_tokens",
    "hang_after", "without", "served_model_name", "heads", "kv_heads", "vocab", "vision_heads",
})  # fmt: skip


def retired_args(spec: DeploymentSpec) -> list[str]:
    """The retired args of this spec."""
    return [name for name in spec.args if name in RETIRED] if spec.engine == "simulated" else []
