"""Random models behind `transformers serve`: answers through the gateway, and the claims against what NVML shows."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from gpu_kit import judge
from gpu_kit.kit import Kit, SkippedError, until
from gpu_kit.model_shapes import Shape
from gpu_kit.product import Product, ProductError
from gpu_kit.results import Finding, Status, judged, noted

_MODEL_S: Final = 60.0
_RUNS_S: Final = 120.0
_ANSWERS: Final = 3
_FAILS: Final = 2
_TOKENS: Final = 48
_WATCHED_S: Final = 1.5


def manifest(kit: Kit, shape: Shape) -> dict[str, Any]:
    folder = kit.models.folder_of(shape.name, _MODEL_S)
    return {"model": f"path:{folder}", "engine": "transformers", "drain_time": "5s"}


def serve(kit: Kit) -> Iterator[Finding]:
    """All models at once, on the same GPU."""
    product = kit.product
    if kit.engines is None:
        raise SkippedError("transformers is not installed")
    watch, began = kit.watch, time.monotonic()
    for shape in kit.shapes:
        product.apply(shape.name, **manifest(kit, shape))
    yield noted("models", "written from a seed", seconds=kit.models.seconds)
    for shape in kit.shapes:
        left_s = max(1.0, began + _RUNS_S - time.monotonic())
        status = until(partial(_settled, product, shape.name), left_s) or product.instance(shape.name) or {}
        running = status.get("phase") == "running"
        words = f"{status.get('phase')} {status.get('reason', '')} {status.get('message', '')}".strip()
        yield judged(f"{shape.name} runs", running, words, seconds=round(time.monotonic() - began, 1))
    for shape in kit.shapes:
        yield from _answers(product, shape)
    time.sleep(_WATCHED_S)
    for shape in kit.shapes:
        claimed = sum(claim["memory_mib"] for claim in (product.instance(shape.name) or {"claims": []})["claims"]
                      if claim["kind"] == "gpu")  # fmt: skip
        held = watch.most_memory(set(product.engines(shape.name)), began)
        yield judge.estimate(f"estimate of {shape.billions:g} B", claimed, held, cuda=kit.cuda)
    yield from _shared(kit, product)


def _settled(product: Product, name: str) -> dict[str, Any] | None:
    """Its status once it runs, or has failed; None: still starting."""
    status = product.instance(name) or {}
    failed = status.get("phase") == "failed" or status.get("restarts", 0) >= _FAILS
    return status if status.get("phase") == "running" or failed else None


def _answers(product: Product, shape: Shape) -> Iterator[Finding]:
    try:
        began = time.monotonic()
        answers = [product.ask(shape.name, _TOKENS) for _ in range(_ANSWERS)]
        seconds = (time.monotonic() - began) / _ANSWERS
        tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
        events = list(product.stream(shape.name, _TOKENS))
    except (ProductError, OSError, KeyError, ValueError) as error:
        yield Finding(f"{shape.name} answers", Status.FAILED, repr(error)[:300])
        return
    complete = all(answer["choices"] for answer in answers) and len(events) > 2
    yield judged(f"{shape.name} answers", complete, tokens=tokens, seconds_each=round(seconds, 2), events=len(events))


def _shared(kit: Kit, product: Product) -> Iterator[Finding]:
    """Two models hold shared claims on the GPU, and answer at the same time."""
    names = [shape.name for shape in kit.shapes[:2]]
    held = {claim["deployment"]: claim for claim in product.gpu(kit.uuid)["claims"]}
    shared = all(name in held and not held[name]["exclusive"] for name in names)
    answered: dict[str, bool] = {}
    threads = [threading.Thread(target=lambda name=name: answered.update({name: product.answers(name)}))
               for name in names]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_RUNS_S)
    gpu = product.gpu(kit.uuid)
    yield judged("two shared claims", shared and all(answered.get(name) for name in names),
                 claims={name: claim["memory_mib"] for name, claim in held.items()}, answered=answered,
                 claimed_mib=gpu["claimed_mib"], free_mib=gpu["free_mib"])  # fmt: skip
