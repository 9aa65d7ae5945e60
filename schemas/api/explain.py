"""Why an instance is pending, as the API shows it."""

from schemas.api.view import View


class NearestMiss(View, frozen=True, kw_only=True):
    """The worker that came closest. Sizes are in GiB, with two decimals."""

    worker: str
    code: str
    need_gib: float | None = None
    free_gib: float | None = None
    message: str = ""


class TriedLayout(View, frozen=True, kw_only=True):
    """A layout that the model itself rules out, however much is free."""

    gpus: int
    tp: int
    reason: str


class Explain(View, frozen=True, kw_only=True):
    """Why an instance is pending.

    Attributes:
        workers: how many were checked.
        fit: how many of them fit.
        rejected: how many of them each reason code rules out.
        nearest: the worker that came closest.
        gpus: how many GPUs were checked.
        unknown: selected workers and GPUs that do not exist.
        ambiguous: selected GPUs whose name means several, each with what to write instead.
        note: about the queue: for which instance capacity is reserved, or what is preempted.
        freeing: capacity is being freed for it: it is placed once that is done.
        tried: layouts for which there would be workers, if the model had another shape. Only in answers on demand.
        advice: what would make the instance fit; the scheduler has tried each line. Only in answers on demand.
        message: one line, such as `0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready`.
    """

    workers: int
    fit: int = 0
    rejected: dict[str, int] = {}
    nearest: NearestMiss | None = None
    gpus: int = 0
    unknown: list[str] = []
    ambiguous: list[str] = []
    note: str = ""
    freeing: bool = False
    tried: list[TriedLayout] = []
    advice: list[str] = []
    message: str = ""
