"""`GET /catalog`: well-known models, what they need, and where each fits now."""

from schemas.api.needs import LayoutView
from schemas.api.view import Moment, View


class CatalogLayout(View, frozen=True, kw_only=True):
    """A way to run a model: on so many GPUs with so much memory of each."""

    gpus: int
    memory_mib_per_gpu: int


class CatalogFit(View, frozen=True, kw_only=True):
    """Where a replica would be placed now. None of it is reserved."""

    engine: str
    workers: list[str]
    gpus: list[str]
    memory_mib_per_gpu: int
    layout: LayoutView


class CatalogModel(View, frozen=True, kw_only=True):
    """A well-known model. What it needs is estimated from its published config; nothing of it was downloaded.

    Attributes:
        model: as a manifest names it.
        source: where its config is published.
        parameters: None where it is not known, as of packed weights, of which one stored element holds several.
        quantization: method of its weights, such as `awq`; None: they are not quantized.
        bits: of a quantized weight, where its config says it.
        weight_bytes: of the files of its weights.
        engines: that can run it, best first.
        context: tokens of a sequence for which the need is estimated.
        sequences: concurrent sequences for which it is.
        layouts: fewest GPUs first.
        fits: where a manifest with nothing but this model would be placed now; None: nowhere.
        message: why it fits nowhere now; else empty.
    """

    model: str
    source: str
    parameters: int | None
    quantization: str | None = None
    bits: int | None = None
    weight_bytes: int
    engines: list[str]
    context: int | None
    sequences: int | None
    layouts: list[CatalogLayout]
    fits: CatalogFit | None
    message: str = ""


class CatalogView(View, frozen=True, kw_only=True):
    """All well-known models, the smallest first. `at`: the moment for which `fits` was judged, a few seconds ago."""

    at: Moment
    items: list[CatalogModel]
