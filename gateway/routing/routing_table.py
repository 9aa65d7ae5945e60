"""Picks the instance for a request, from a table in memory: fewest requests in flight first. No I/O."""

import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from controller.live.endpoints import Endpoint, Model, RolloutRoute, Stopped
from gateway.routing.available_replicas import OpenReplicas, ReplicaBackoff
from gateway.routing.choose_revision import belongs_to_new, by_revision, place_in_turn, place_of_session
from gateway.routing.session_home import SessionHomes, home_of

_NEVER: Final = 0
_REPORTED_S: Final = 2.0  # for which a count of other gateways' requests is believed
_MOST_COMPARED: Final = 64  # replicas; beyond it two are drawn, and the less busy one is picked

ModelStateName = Literal["asleep", "waking", "running"]


@dataclass(frozen=True, slots=True)
class ServedName:
    """A name by which requests may name a model. `adapter_of`: the deployment, where it is an adapter."""

    state: ModelStateName
    adapter_of: str = ""


class RoutingTable:
    """Running endpoints by model, with the requests in flight to each. The counts outlive an update."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._in_flight: dict[str, int] = {}
        self._others: dict[str, tuple[int, float]] = {}  # requests of other gateways, and when they were reported
        self._backoff = ReplicaBackoff()
        self._open = OpenReplicas(self._takes_at)
        self._models: Mapping[str, Model] = {}
        self._aliases: dict[str, str] = {}
        self._adapters: dict[str, str] = {}
        self._stopped: Mapping[str, Stopped] = {}
        self._by_model: dict[str, list[Endpoint]] = {}
        self._last_picked: dict[str, int] = {}
        self._picks = _NEVER
        self._places = 0
        self._homes: dict[str, SessionHomes] = {}  # for models that sessions have used
        self._refuse_usage: set[tuple[str, int]] = set()  # starts of instances whose engines do not know the field

    def update(
        self, models: Mapping[str, Model], endpoints: Iterable[Endpoint], stopped: Mapping[str, Stopped] | None = None
    ) -> None:
        """Replaces the endpoints. `stopped`: deployments that want no replicas, with the reason."""
        by_model: dict[str, list[Endpoint]] = {}
        present: set[str] = set()
        starts: set[tuple[str, int]] = set()
        for endpoint in endpoints:
            by_model.setdefault(endpoint.model, []).append(endpoint)
            present.add(endpoint.instance)
            starts.add((endpoint.instance, endpoint.epoch))
        self._models, self._by_model, self._stopped = models, by_model, stopped or {}
        self._aliases = {alias: name for name in sorted(models) for alias in models[name].limits.aliases}
        self._adapters = {adapter: name for name in sorted(models) for adapter in models[name].limits.adapters}
        self._last_picked = {i: pick for i, pick in self._last_picked.items() if i in present}
        self._refuse_usage &= starts
        self._keep(by_model)
        self._homes = {name: homes for name, homes in self._homes.items() if name in by_model}
        for name, homes in self._homes.items():
            homes.update(by_model[name])

    def requests_usage(self, endpoint: Endpoint) -> bool:
        """Whether streams of this replica are requested with token counts where the client did not request them."""
        return endpoint.limits.stream_usage != "off" and (endpoint.instance, endpoint.epoch) not in self._refuse_usage

    def refuses_usage(self, endpoint: Endpoint) -> None:
        """The engine of this replica refuses the field that requests token counts: it is sent no more."""
        self._refuse_usage.add((endpoint.instance, endpoint.epoch))

    def name_of(self, name: str) -> str:
        """The deployment of this name, alias or adapter; the name itself where there is none."""
        if name in self._models:
            return name
        return self._aliases.get(name) or self._adapters.get(name, name)

    def is_adapter(self, name: str) -> bool:
        """Whether a request is for an adapter of a deployment."""
        return name in self._adapters and self.name_of(name) == self._adapters[name]

    def model(self, name: str) -> Model | None:
        return self._models.get(name)

    def uids(self) -> frozenset[str]:
        return frozenset(model.uid for model in self._models.values())

    def names(self) -> frozenset[str]:
        return frozenset(self._models)

    def revisions(self) -> set[tuple[str, str]]:
        """All live deployments: each with every revision of which an instance runs, and with an empty one."""
        running = {(name, endpoint.revision) for name, running in self._by_model.items() for endpoint in running}
        return running | {(name, "") for name in self._models}

    def knows(self, model: str) -> bool:
        return model in self._models

    def runs(self, model: str, adapter: str = "") -> bool:
        """Whether an instance of it runs, at its limit or not; with an adapter, one that has loaded it."""
        running = self._by_model.get(model, ())
        return any(adapter in endpoint.adapters for endpoint in running) if adapter else bool(running)

    def served_models(self, allows: Callable[[str], bool] = lambda _: True) -> dict[str, ServedName]:
        """All names for which a model that is not stopped serves, of those that a key may use.

        A deployment's aliases and adapters follow its name.
        """
        served_names: dict[str, ServedName] = {}
        for name, model in self._models.items():
            if name in self._stopped or not model.serves:
                continue
            asleep: ModelStateName = "asleep" if model.wanted == 0 else "waking"
            state: ModelStateName = "running" if self.runs(name) else asleep
            aliases = [alias for alias in model.limits.aliases if self._aliases.get(alias) == name]
            names = {alias: ServedName(state) for alias in (name, *aliases)}
            for adapter in model.limits.adapters:
                if self.is_adapter(adapter) and self._adapters[adapter] == name:
                    loaded = state != "running" or self.runs(name, adapter)
                    names[adapter] = ServedName(state if loaded else "waking", name)
            served_names |= {
                served_name: served for served_name, served in names.items() if allows(name) or allows(served_name)
            }
        return dict(sorted(served_names.items()))

    def stopped(self, model: str) -> Stopped | None:
        """Why that deployment wants no replicas; None if it wants some, or is unknown."""
        return self._stopped.get(model)

    def rollouts(self) -> dict[str, RolloutRoute]:
        return {model.uid: model.rollout for model in self._models.values() if model.rollout is not None}

    def place(self, model: str, session: bytes) -> float | None:
        """A request's place while a share of the requests goes to a new revision; None otherwise."""
        rollout = self._rollout(model)
        if rollout is None:
            return None
        if session:
            return place_of_session(session, self._models[model].uid, rollout.revision)
        self._places += 1
        return place_in_turn(self._places)

    def lane(self, model: str, session: bytes, place: float | None, adapter: str = "") -> str:
        """The revision to which a request of a session is bound: `new` or `old`; empty: to neither.

        It is bound while a replica of its revision runs, even if all of them are at their limit.
        """
        rollout = self._rollout(model)
        if not session or place is None or rollout is None:
            return ""
        own, _ = by_revision(self._with_adapter(model, adapter), rollout, place)
        return ("new" if belongs_to_new(rollout, place) else "old") if own else ""

    def _rollout(self, model: str) -> RolloutRoute | None:
        known = self._models.get(model)
        rollout = None if known is None else known.rollout
        return None if rollout is None or rollout.weight is None else rollout

    def _with_adapter(self, model: str, adapter: str) -> list[Endpoint]:
        known = self._by_model.get(model, [])
        return [e for e in known if adapter in e.adapters] if adapter else known

    def pick(
        self,
        model: str,
        tried: Collection[str] = (),
        *,
        queued: bool = False,
        adapter: str = "",
        session: bytes = b"",
        place: float | None = None,
        bound: bool = False,
    ) -> Endpoint | None:
        """The endpoint with the fewest requests in flight below its limit; among equals the least recently picked.

        An endpoint that refused is left alone for a while. Where all of a model's did, the first that may be tried is
        picked, once, but not for a request that can wait in the queue.

        `tried`: instances that this request has tried already.
        `queued`: the request waits in the queue.
        `adapter`: only instances that have loaded it; empty: any.
        `session`: it goes to its home while that can take it; empty without one.
        `place`: among all requests, which gives the revision that is preferred; None: any.
        `bound`: it goes to that revision alone: see `lane`.
        """
        now, known = self._clock(), self._with_adapter(model, adapter)
        chosen = None
        if place is not None and (rollout := self._rollout(model)) is not None:
            groups = by_revision(known, rollout, place)
            if bound:
                known = groups[0]
            for group in groups[:1] if bound else groups:
                chosen = chosen or self._best(group, tried, now, queued=True, session=session)
        chosen = chosen or self._best(known, tried, now, queued=queued, session=session)
        if chosen is None:
            return None
        self._picks += 1
        self._last_picked[chosen.instance] = self._picks
        if self._backoff.suspects:
            self._backoff.picked(chosen.instance, now)
        return chosen

    def _best(
        self, known: list[Endpoint], tried: Collection[str], now: float, *, queued: bool, session: bytes
    ) -> Endpoint | None:
        home = self._home(known, session) if session else None
        if home is not None and self._can_take(home, tried, now):
            return home
        return self._least_busy(known, tried, now, queued=queued)

    def _home(self, known: list[Endpoint], session: bytes) -> Endpoint | None:
        model = self._all_of(known)
        if not model:
            return home_of(session, known)
        if model not in self._homes:
            self._homes[model] = SessionHomes(known)
        return self._homes[model].of(session)

    def _all_of(self, known: list[Endpoint]) -> str:
        """The model of which these are all replicas; empty if others run as well."""
        model = known[0].model if known else ""
        return model if known is self._by_model.get(model) else ""

    def _least_busy(
        self, known: list[Endpoint], tried: Collection[str], now: float, *, queued: bool
    ) -> Endpoint | None:
        compared = known
        if len(known) > _MOST_COMPARED:
            drawn = [known[int(self._chance() * len(known))] for _ in range(2)]
            drawn = [e for e in drawn if self._can_take(e, tried, now)]
            if drawn:
                return min(drawn, key=lambda e: self._load(e.instance, now))
            if model := self._all_of(known):
                compared = self._open.some(model, now, _MOST_COMPARED + len(tried))
        least, best = (0, 0), None
        for endpoint in compared:
            load = self._load(endpoint.instance, now)
            if load >= endpoint.max_in_flight or endpoint.instance in tried:
                continue
            if self._backoff.suspects and self._backoff.waits_until(endpoint.instance) > now:
                continue
            rank = (load, self._last_picked.get(endpoint.instance, _NEVER))
            if best is None or rank < least:
                least, best = rank, endpoint
        if best is None and self._backoff.suspects and not tried and not queued:
            below = (endpoint for endpoint in known if self._load(endpoint.instance, now) < endpoint.max_in_flight)
            return min(below, key=lambda e: self._backoff.waits_until(e.instance), default=None)
        return best

    def _can_take(self, endpoint: Endpoint, tried: Collection[str], now: float) -> bool:
        return endpoint.instance not in tried and self._takes_at(endpoint, now) <= now

    def at_replicas(self) -> dict[str, dict[str, int]]:
        """Requests in flight from this gateway to each running instance that has some, by the deployment's uid."""
        by_uid: dict[str, dict[str, int]] = {}
        for name, running in self._by_model.items():
            counts = {
                endpoint.instance: self._in_flight[endpoint.instance]
                for endpoint in running
                if endpoint.instance in self._in_flight
            }
            if counts and (known := self._models.get(name)) is not None:
                by_uid[known.uid] = counts
        return by_uid

    # The load of each replica

    def _keep(self, by_model: Mapping[str, Sequence[Endpoint]]) -> None:
        """Replaces the replicas. Requests in flight to others stay counted."""
        present = {endpoint.instance for running in by_model.values() for endpoint in running}
        self._others = {instance: reported for instance, reported in self._others.items() if instance in present}
        self._backoff.keep(present)
        self._open.update(by_model)

    def enter(self, endpoint: Endpoint) -> str:
        """Counts a request in flight; `leave` must follow. Returns the deployment's uid; empty: it is gone."""
        known = self._models.get(endpoint.model)
        self._in_flight[endpoint.instance] = self._in_flight.get(endpoint.instance, 0) + 1
        return known.uid if known is not None else ""

    def leave(self, endpoint: Endpoint) -> None:
        left = self._in_flight[endpoint.instance] - 1
        if left:
            self._in_flight[endpoint.instance] = left
        else:
            del self._in_flight[endpoint.instance]
        if endpoint.instance in self._open.closed:
            self._open.opened(endpoint.instance)

    def in_flight(self, instance: str) -> int:
        return self._in_flight.get(instance, 0)

    def reported(self, endpoint: Endpoint, in_flight: int) -> None:
        """The endpoint's agent reports how many requests the instance has, those of other gateways included."""
        others = in_flight - self._in_flight.get(endpoint.instance, 0)
        if others > 0:
            self._others[endpoint.instance] = (others, self._clock())
        else:
            self._others.pop(endpoint.instance, None)
        if endpoint.instance in self._open.closed:
            self._open.opened(endpoint.instance)

    def refused(self, endpoint: Endpoint) -> None:
        self._backoff.refused(endpoint.instance, self._clock())

    def answered(self, endpoint: Endpoint, in_flight: int | None = None) -> None:
        """The endpoint's engine answers. `in_flight`: requests that the instance has, as its agent reports; or None."""
        if in_flight is not None:
            self.reported(endpoint, in_flight)
        if self._backoff.suspects:
            self._backoff.answered(endpoint.instance)
            if endpoint.instance in self._open.closed:
                self._open.opened(endpoint.instance)

    def free(self, model: str) -> bool:
        return bool(self._open.some(model, self._clock(), 1))

    def _load(self, instance: str, now: float) -> int:
        own, reported = self._in_flight.get(instance, 0), self._others.get(instance)
        return own if reported is None or now >= reported[1] + _REPORTED_S else own + reported[0]

    def _takes_at(self, endpoint: Endpoint, now: float) -> float:
        """When it can take a request if nothing more happens; infinity: never."""
        instance, most = endpoint.instance, endpoint.max_in_flight
        if (until := self._backoff.waits_until(instance)) > now:
            return until
        if self._in_flight.get(instance, 0) >= most:
            return math.inf
        return now if self._load(instance, now) < most else self._others[instance][1] + _REPORTED_S
