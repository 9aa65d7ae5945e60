"""A need as the API shows it: the figure of the chosen layout with its parts."""

from controller.domain.placement import Layout, Need, Share
from schemas.api.needs import NeedView
from schemas.manifest.resources import Resources


def need_view(need: Need, resources: Resources, engine: str | None = None, layout: Layout | None = None) -> NeedView:
    """The need per GPU of that layout; in total, where none is chosen or the engine did not measure it.

    Where the need is unknown, the memory per GPU that the user states.
    """
    own = dict(need.by_engine).get(engine or "", need)
    share = own.share_of(layout) if layout is not None else None
    if share is None and own.memory_mib is None:
        share = _stated(resources)
    return NeedView(
        memory_mib=own.memory_mib if share is None else share.memory_mib,
        host_memory_mib=own.host_memory_mib if share is None else share.host_memory_mib or own.host_memory_mib,
        parts=dict(own.parts if share is None else share.parts),
        per_gpu=share is not None,
        context=own.context if layout is None else own.context_of(layout),
        sequences=own.sequences if layout is None else own.sequences_of(layout),
        notes=list(own.notes),
    )


def _stated(resources: Resources) -> Share | None:
    if resources.gpus == 0:
        return Share(1, 1, 1, 0)
    return Share(1, 1, 1, resources.gpu_memory) if isinstance(resources.gpu_memory, int) else None
