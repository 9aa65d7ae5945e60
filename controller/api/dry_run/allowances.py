"""The bounds of dry runs: threads to compute in, and what each caller may request. Viewers have lower bounds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from aiohttp import web

from controller.api.apply import granted_to
from controller.api.body import MAX_BODY_BYTES
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import unavailable
from controller.api.open_streams import OpenStreams
from controller.domain.access.grants import Grant
from controller.domain.placement import Need
from schemas.manifest.deployment import DeploymentSpec

MAX_MANIFESTS: Final = 1_000
MAX_MANIFESTS_OF_VIEWERS: Final = 20  # the event loop parses them
# Of a plan's body: parsing far more than 20 manifests would block the event loop for nothing.
MAX_BODY_BYTES_OF_VIEWERS: Final = 2**17
MAX_INSTANCES: Final = 10_000
MAX_INSTANCES_OF_VIEWERS: Final = 1_000
MAX_ANALYSES_AT_ONCE: Final = 2  # the controller's own analyses need the remaining capacity
ANALYSES_AT_ONCE: Final = web.AppKey("ANALYSES_AT_ONCE", asyncio.Semaphore)
MAX_SAMPLES: Final = 250_000  # a day of 29 idle GPUs, or ten minutes of 2,700; some seconds of the event loop
MAX_SAMPLES_OF_VIEWERS: Final = 50_000
JUDGING: Final = web.AppKey("JUDGING", asyncio.Lock)
JUDGING_OF_VIEWERS: Final = web.AppKey("JUDGING_OF_VIEWERS", asyncio.Lock)
MAX_OF_VIEWER_AT_ONCE: Final = 2  # one computes, one waits: a page sends its next plan before the last has ended
MAX_OF_VIEWERS_AT_ONCE: Final = 16
VIEWERS_AT_ONCE: Final = web.AppKey("VIEWERS_AT_ONCE", OpenStreams)
Analyse: TypeAlias = Callable[[DeploymentSpec], Awaitable[Need]]
AT_ONCE: Final = 2  # more would only share the interpreter
OF_VIEWERS_AT_ONCE: Final = 1
MOST_WAITING: Final = 32
P = ParamSpec("P")
T = TypeVar("T")


class Passes:
    """Runs computations, `at_once` at a time."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="dry-run")
        self._max_requests = at_once + MOST_WAITING
        self._requests = 0

    async def run(self, compute: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Returns the result. The request's deadline ends the wait, but not a running computation.

        Raises:
            ApiError: 503, too many wait.
        """
        if self._requests >= self._max_requests:
            raise unavailable("overloaded", "too many plans are being computed; try again in a moment")
        self._requests += 1
        try:
            return await asyncio.wrap_future(self._threads.submit(compute, *args, **named))
        finally:
            self._requests -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


PASSES: Final = web.AppKey("PASSES", Passes)
PASSES_OF_VIEWERS: Final = web.AppKey("PASSES_OF_VIEWERS", Passes)


@dataclass(frozen=True, slots=True)
class DryRunCaller:
    """The caller of a dry run, and its bounds.

    Attributes:
        granted: its grants.
        analyse: computes an unknown need; None: unknown needs stay unknown.
        analysing: held while needs are computed.
        computing: held from the arrival of the body to the end; raises ApiError 429 or 503 if too many are running.
        judging: held while policies are judged, which takes memory and the event loop.
        samples: approximate maximum for judging policies; beyond it their effect is unknown.
        passes: threads to compute in.
        manifests: maximum of one dry run.
        instances: maximum that one dry run places.
        knows_secrets: whether it may learn which secrets exist.
    """

    granted: frozenset[Grant]
    analyse: Analyse | None
    analysing: AbstractAsyncContextManager[Any]
    computing: AbstractContextManager[None]
    judging: AbstractAsyncContextManager[Any]
    samples: int
    passes: Passes
    body_bytes: int
    manifests: int
    instances: int
    knows_secrets: bool


async def dry_runs_context(app: web.Application) -> AsyncIterator[None]:
    passes, of_viewers = app[PASSES], app[PASSES_OF_VIEWERS] = Passes(), Passes(OF_VIEWERS_AT_ONCE)
    app[ANALYSES_AT_ONCE] = asyncio.Semaphore(MAX_ANALYSES_AT_ONCE)
    app[JUDGING], app[JUDGING_OF_VIEWERS] = asyncio.Lock(), asyncio.Lock()
    app[VIEWERS_AT_ONCE] = OpenStreams(
        "plans", "too_many_plans", of_key=MAX_OF_VIEWER_AT_ONCE, total=MAX_OF_VIEWERS_AT_ONCE
    )
    try:
        yield
    finally:
        passes.close()
        of_viewers.close()


def caller_of_dry_run(request: web.Request) -> DryRunCaller:
    app, principal = request.app, request[PRINCIPAL]
    analyses, judging, judging_of_viewers = app[ANALYSES_AT_ONCE], app[JUDGING], app[JUDGING_OF_VIEWERS]
    if principal.role == "viewer":
        return DryRunCaller(
            granted_to(request),
            analyse=None,
            analysing=nullcontext(),
            computing=app[VIEWERS_AT_ONCE].admitted(principal.key_id),
            judging=judging_of_viewers,
            samples=MAX_SAMPLES_OF_VIEWERS,
            passes=app[PASSES_OF_VIEWERS],
            body_bytes=MAX_BODY_BYTES_OF_VIEWERS,
            manifests=MAX_MANIFESTS_OF_VIEWERS,
            instances=MAX_INSTANCES_OF_VIEWERS,
            knows_secrets=False,
        )
    return DryRunCaller(
        granted_to(request),
        analyse=app[CONTEXT].analyse,
        analysing=analyses,
        computing=nullcontext(),
        judging=judging,
        samples=MAX_SAMPLES,
        passes=app[PASSES],
        body_bytes=MAX_BODY_BYTES,
        manifests=MAX_MANIFESTS,
        instances=MAX_INSTANCES,
        knows_secrets=True,
    )
