"""What a caller may have worked out for it by a dry run. Viewers read: nothing is begun for them without a bound."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aiohttp import web

from controller.api.apply import granted_to
from controller.api.body import MAX_BODY_BYTES
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.dry_run.passes import PASSES, PASSES_OF_VIEWERS, Passes
from controller.api.key_share import KeyShare
from controller.domain.access.grants import Grant
from controller.domain.placement import Need
from schemas.manifest.deployment import DeploymentSpec

MAX_MANIFESTS: Final = 1_000
MAX_MANIFESTS_OF_VIEWERS: Final = 20  # the event loop parses them
# Of a plan's body: reading what is far beyond 20 manifests would hold the event loop for nothing.
MAX_BODY_BYTES_OF_VIEWERS: Final = 2**17
MAX_INSTANCES: Final = 10_000
MAX_INSTANCES_OF_VIEWERS: Final = 1_000
MAX_ANALYSES_AT_ONCE: Final = 2  # plans run beside the controller's own analyses and must not crowd them out
ANALYSES_AT_ONCE: Final = web.AppKey("ANALYSES_AT_ONCE", asyncio.Semaphore)
MAX_SAMPLES: Final = 250_000  # a day of 29 idle GPUs, or ten minutes of 2,700; some seconds of the event loop
MAX_SAMPLES_OF_VIEWERS: Final = 50_000
JUDGING: Final = web.AppKey("JUDGING", asyncio.Lock)
JUDGING_OF_VIEWERS: Final = web.AppKey("JUDGING_OF_VIEWERS", asyncio.Lock)
MAX_OF_VIEWER_AT_ONCE: Final = 2  # one computes, and one waits: a page asks anew before the one it left has ended
MAX_OF_VIEWERS_AT_ONCE: Final = 16
VIEWERS_AT_ONCE: Final = web.AppKey("VIEWERS_AT_ONCE", KeyShare)
Analyse: TypeAlias = Callable[[DeploymentSpec], Awaitable[Need]]


@dataclass(frozen=True, slots=True)
class DryRunCaller:
    """The caller of a dry run.

    Attributes:
        granted: what it may write beside what each may.
        analyse: works out an unknown need; None: only needs that are known are told.
        analysing: held while needs are worked out.
        computing: held from when the body has come to the end; raises ApiError 429 or 503 where too many are under way.
        judging: held while policies are judged, which takes memory and the event loop.
        samples: the most that policies are judged by, about; beyond it what they would stop is unknown.
        passes: where it computes.
        body_bytes: the most of one body.
        manifests: the most of one dry run.
        instances: the most that one dry run places.
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


def viewers_at_once() -> KeyShare:
    """Counts the plans of viewers that are under way."""
    return KeyShare("plans", "too_many_plans", of_key=MAX_OF_VIEWER_AT_ONCE, total=MAX_OF_VIEWERS_AT_ONCE)


def caller_of_dry_run(request: web.Request) -> DryRunCaller:
    """The caller of this request."""
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
