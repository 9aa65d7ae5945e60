"""What a caller may have worked out for it by a dry run. Viewers read: nothing is begun for them without a bound."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.spec_privileges import judge_for
from controller.domain.placement import Need
from controller.store.deployments.apply import Judge
from schemas.manifest.deployment import DeploymentSpec

MAX_INSTANCES: Final = 10_000
MAX_INSTANCES_OF_VIEWERS: Final = 1_000
MAX_ANALYSES_AT_ONCE: Final = 2  # plans run beside the controller's own analyses and must not crowd them out
ANALYSES_AT_ONCE: Final = web.AppKey("ANALYSES_AT_ONCE", asyncio.Semaphore)
MAX_VIEWERS_AT_ONCE: Final = 1  # a plan computes in a thread beside the event loop
VIEWERS_AT_ONCE: Final = web.AppKey("VIEWERS_AT_ONCE", asyncio.Semaphore)
Analyse: TypeAlias = Callable[[DeploymentSpec], Awaitable[Need]]


@dataclass(frozen=True, slots=True)
class DryRunCaller:
    """The caller of a dry run.

    Attributes:
        judge: raises for what it may not write.
        analyse: works out an unknown need; None: only needs that are known are told.
        analysing: held while needs are worked out.
        computing: held during the whole dry run.
        instances: the most that one dry run places.
        knows_secrets: whether it may learn which secrets exist.
    """

    judge: Judge
    analyse: Analyse | None
    analysing: AbstractAsyncContextManager[Any]
    computing: AbstractAsyncContextManager[Any]
    instances: int
    knows_secrets: bool


def caller_of_dry_run(request: web.Request) -> DryRunCaller:
    """The caller of this request."""
    judge, app = judge_for(request), request.app
    if request[PRINCIPAL].role == "viewer":
        at_once = app[VIEWERS_AT_ONCE]
        return DryRunCaller(judge, None, nullcontext(), at_once, MAX_INSTANCES_OF_VIEWERS, knows_secrets=False)
    analyse, at_once = app[CONTEXT].analyse, app[ANALYSES_AT_ONCE]
    return DryRunCaller(judge, analyse, at_once, nullcontext(), MAX_INSTANCES, knows_secrets=True)
