"""Models as rows: what deployments run, joined with what workers have cached. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

Json = Mapping[str, Any]
_CACHED: Final = "cached"
_HUB: Final = "hf:"


@dataclass(frozen=True, slots=True)
class Cached:
    """A model in the cache of a worker.

    Attributes:
        commits: of its revisions; empty: its agent does not report them.
        current: it has the commit that the deployment runs, as far as that is known.
    """

    worker: str
    size_bytes: int
    used_at: datetime | None
    in_use: bool
    commits: tuple[str, ...] = ()
    current: bool = True

    @classmethod
    def of(cls, worker: str, raw: Json) -> Self:
        commits = tuple(str(row["commit"]) for row in raw.get("snapshots") or () if row.get("commit"))
        return cls(worker, int(raw["size_bytes"]), _time(raw.get("used_at")), bool(raw["in_use"]), commits)

    def for_commit(self, commit: str | None) -> "Cached":
        current = commit is None or not self.commits or commit in self.commits
        return Cached(self.worker, self.size_bytes, self.used_at, self.in_use, self.commits, current)

    def as_json(self) -> dict[str, Any]:
        used_at = None if self.used_at is None else self.used_at.isoformat()
        return {
            "worker": self.worker, "size_bytes": self.size_bytes, "used_at": used_at, "in_use": self.in_use,
            "commits": list(self.commits), "current": self.current,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A deployment with its model; or a cached model of no deployment, whose `deployment` is empty.

    Attributes:
        state: phase of the deployment, else `cached`.
        ready: as `1/2`; empty without a deployment.
        aliases: other names for requests, of adapters too.
        running_on: workers of its running instances.
        used_at: the latest use of a cached copy.
    """

    deployment: str
    model: str
    state: str
    ready: str
    aliases: tuple[str, ...]
    running_on: tuple[str, ...]
    cached: tuple[Cached, ...]
    engines: tuple[str, ...]
    created_at: datetime | None

    @property
    def names(self) -> frozenset[str]:
        bare = self.model.partition("@")[0]
        return frozenset(name for name in (self.deployment, self.model, bare, *self.aliases) if name)

    @property
    def used_at(self) -> datetime | None:
        return max((on.used_at for on in self.cached if on.used_at is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.deployment or self.model, "deployment": self.deployment or None, "model": self.model or None,
            "state": self.state, "ready": self.ready or None, "aliases": list(self.aliases),
            "running_on": list(self.running_on), "cached": [on.as_json() for on in self.cached],
            "engines": list(self.engines), "created_at": self.created_at and self.created_at.isoformat(),
        }  # fmt: skip


def model_rows(
    deployments: Iterable[Json], instances: Iterable[Json], caches: Mapping[str, Sequence[Cached]]
) -> list[ModelRow]:
    """Deployments by name, then cached models of none. A command without a model is left out."""
    workers: dict[str, list[str]] = {}
    for instance in instances:
        status = instance["status"]
        if status["phase"] == "running":
            names = status.get("workers") or [status["worker"]] * bool(status.get("worker"))
            workers.setdefault(str(instance["spec"]["deployment_uid"]), []).extend(names)
    rows = []
    used = set()
    for raw in sorted(deployments, key=lambda raw: str(raw["name"])):
        spec, status = raw["spec"], raw["status"]
        model = spec.get("model") or ""
        if not model and spec.get("engine") == "custom":
            continue
        bare = model.partition("@")[0]
        used.add(bare)
        commit = _commit_of(bare, model, status.get("model_commits") or {})
        rows.append(
            ModelRow(
                deployment=str(raw["name"]),
                model=model,
                state=str(status["phase"]),
                ready=f"{status.get('ready', 0)}/{status.get('wanted', 0)}",
                aliases=_aliases(spec.get("serving") or {}),
                running_on=tuple(dict.fromkeys(workers.get(str(raw["uid"]), ()))),
                cached=tuple(on.for_commit(commit) for on in caches.get(bare, ())),
                engines=tuple(status.get("engines") or [spec.get("engine") or "auto"]),
                created_at=_time(raw.get("created_at")),
            )
        )
    alone = sorted(caches.keys() - used)
    return rows + [ModelRow("", name, _CACHED, "", (), (), tuple(caches[name]), (), None) for name in alone]


def _aliases(serving: Json) -> tuple[str, ...]:
    return (*(serving.get("aliases") or ()), *(serving.get("adapters") or {}))


def _commit_of(bare: str, model: str, commits: Mapping[str, str]) -> str | None:
    """The commit that the deployment runs; None: it has not run, or the model is not of the hub."""
    name, _, revision = model.removeprefix(_HUB).partition("@")
    if not model.startswith(_HUB):
        return None
    return commits.get(f"{name}@{revision or 'main'}") or commits.get(bare.removeprefix(_HUB))


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else text
