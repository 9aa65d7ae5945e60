"""What an instance needs and how it is spread, as the API shows it."""

from schemas.base import View


class LayoutView(View):
    """How an instance is spread: GPUs in all, workers, and the degrees of parallelism."""

    gpus: int
    workers: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1


class NeedView(View):
    """What it needs, and what the figure is made of: MiB of each GPU (`per_gpu`), or in all.

    What cannot be worked out is as the user states it. `memory_mib` None: nor is it stated, so whole GPUs are taken.
    `notes` say why it is so, and why this engine.
    """

    memory_mib: int | None
    host_memory_mib: int = 0
    parts: dict[str, int] = {}
    per_gpu: bool = False
    context: int | None = None
    sequences: int | None = None
    notes: list[str] = []
