"""The options of `transformers serve`, in versions 4.55 to 5.23."""

from typing import Final

from controller.domain.grants import Grant
from controller.engines.arguments.options import (
    BY_AGENT,
    BY_MODEL,
    BY_PROXY,
    READS,
    REMOTE_CODE,
    Limit,
    Options,
    Privilege,
    whole_gpus,
)

_BATCHES: Final = Limit("takes a share of the whole GPU; claim whole GPUs by resources.gpu_memory: all", whole_gpus)

TRANSFORMERS: Final = Options(
    aliases={"torch-dtype": "dtype"},
    limits={
        "host": Limit(BY_PROXY),
        "port": Limit(BY_AGENT),
        "force-model": Limit(BY_MODEL),
        "continuous-batching": _BATCHES,
        "cb-num-blocks": _BATCHES,
        "cb-block-size": _BATCHES,
        "cb-max-batch-tokens": _BATCHES,
        "cb-max-memory-percent": _BATCHES,
    },
    privileged={
        "trust-remote-code": REMOTE_CODE,
        "decision-config": READS,
        "attn-implementation": Privilege(
            Grant.CODE, "loads kernels from the hub",
            harmless=frozenset({"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}),
        ),
    },
)  # fmt: skip
