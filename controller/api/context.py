"""What the handlers are given: the database, the leader's standing, and the few questions that others answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.api.hints import Hints
from controller.domain.placement import Need
from controller.scheduling.admission.admission import RESERVE_AFTER_S
from controller.store.access.keys import KeyRing, Principal
from controller.store.core.database import Database
from schemas.manifest.deployment import DeploymentSpec


@dataclass(frozen=True, slots=True)
class Check:
    """One part of being ready; `message` says what is wrong, or how well it is."""

    ok: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything the API stands upon.

    Attributes:
        database: where all is read and written.
        hints: wake-ups, published by whoever listens to the database.
        leadership: whether this controller leads, and its term.
        readiness: the checks behind /readyz, by name.
        loop_lag: by how many seconds the event loop was late lately.
        analyse: works out the need of a spec that nobody has analysed yet; raises ChildFailure where it cannot.
        registry: what /metrics shows beside the figures that are read from the rows.
        version: of this program.
        reserve_after_s: for how long one has to wait until room is kept for it.
        longest_window_s: for how long samples are kept; no policy may look further back.
    """

    database: Database
    hints: Hints
    leadership: Callable[[], tuple[bool, int | None]]
    readiness: Callable[[], Awaitable[Mapping[str, Check]]]
    loop_lag: Callable[[], float]
    analyse: Callable[[DeploymentSpec], Awaitable[Need]]
    registry: CollectorRegistry
    version: str
    longest_window_s: float
    reserve_after_s: float = RESERVE_AFTER_S


CONTEXT: Final = web.AppKey("CONTEXT", ApiContext)
KEYS: Final = web.AppKey("KEYS", KeyRing)
PRINCIPAL: Final = web.RequestKey("PRINCIPAL", Principal)
