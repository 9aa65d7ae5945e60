"""The need of an instance and its layout, as the API shows them."""

from schemas.api.view import View


class LayoutView(View, frozen=True, kw_only=True):
    """How an instance is spread: its GPUs, its workers, and the degrees of parallelism."""

    gpus: int
    workers: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1


class NeedView(View, frozen=True, kw_only=True):
    """The need of an instance: estimated, else as the user states it.

    Attributes:
        memory_mib: GPU memory; None: neither estimated nor stated, so whole GPUs are claimed.
        host_memory_mib: main memory.
        parts: what `memory_mib` consists of, in MiB.
        per_gpu: `memory_mib` and `parts` are of each GPU, not of all together.
        context: tokens of context that the memory is sufficient for.
        sequences: sequences of that context at the same time.
        notes: why the need is so, and why this engine.
    """

    memory_mib: int | None
    host_memory_mib: int = 0
    parts: dict[str, int] = {}
    per_gpu: bool = False
    context: int | None = None
    sequences: int | None = None
    notes: list[str] = []
