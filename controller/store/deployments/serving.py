"""Live deployments and their running instances, as gateways route requests, in one read."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from controller.domain.access.redaction import plain
from controller.domain.instances import Intent
from controller.domain.wanted import ReplicaRule
from controller.store.access.proxy_secrets import (
    JOIN_PROXY_SECRET,
    PROXY_SECRET,
    StoredProxySecret,
    stored_proxy_secret,
)
from controller.store.core.database import Reader
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.resources import bounds_of
from schemas.manifest.serving import ServingLimits


class RevisionKey(NamedTuple):
    """A revision, whose spec never changes."""

    deployment: Any  # its uid
    generation: int
    created_at: datetime  # distinguishes it from a revision of the same number that the ledger has lost


@dataclass(frozen=True, slots=True)
class RunningInstance:
    """A running instance whose worker has a proxy."""

    deployment: str  # its name
    instance: str
    epoch: int
    address: str  # HOST:PORT of the worker's proxy
    secret: StoredProxySecret
    revision: RevisionKey
    engine: str  # chosen by placement; empty: the spec leaves no choice
    limits: ServingLimits
    certificate: str = ""  # SHA-256 of the proxy's, in hexadecimal digits; empty without TLS


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a deployment wants no replicas."""

    source: str  # whose limit: user or policy; empty: its spec wants none
    policy: str = ""  # its name; empty: not a policy, or an inline one

    def remedy(self, deployment: str) -> str:
        """The command that starts it again."""
        return f"gpuward start {deployment}" if self.source else f"gpuward scale {deployment} 1"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a deployment that should run does not run, for its clients."""

    code: str  # `no_capacity` or `start_failed`
    why: str  # as `gpuward ps` shows it
    again_in_s: float = 0.0  # until the next attempt; 0: at any time


@dataclass(frozen=True, slots=True)
class RolloutRoute:
    """A rollout in progress."""

    revision: str  # the new revision
    attempt: int  # by which requests are counted
    weight: int | None = None  # percent of the requests for it; None: by least load over all replicas


@dataclass(frozen=True, slots=True)
class Model:
    """A live deployment as the gateway serves it."""

    uid: str
    limits: ServingLimits
    may_sleep: bool  # a request wakes it
    wanted: int  # replicas
    starting: int  # instances that hold claims and do not run yet
    trouble: Trouble | None = None  # no instance runs until a change or another attempt; None: an instance may soon
    load_s: float | None = None  # duration of its last start; None: unknown
    serves: bool = True  # it takes requests; a command without a port does not
    rollout: RolloutRoute | None = None  # None: it is complete


@dataclass(frozen=True, slots=True)
class Serving:
    """All live deployments, by name."""

    models: Mapping[str, Model]
    instances: list[RunningInstance]
    stopped: Mapping[str, Stopped]
    limits: Mapping[str, ServingLimits]  # by the text from which they were parsed

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.models)


# A user's stop takes precedence over a policy's, since it lasts.
_DEPLOYMENTS: Final = """
    select d.uid, d.name, d.spec->'replicas' as replicas, coalesce(d.spec->>'serving', '{}') as limits,
           (d.spec->'scaling'->>'dry_run')::boolean as dry_run, d.spec->'command' as command, d.load_s,
           limited.source, o.revision as rollout_revision, o.attempt, o.weight,
           (select coalesce(jsonb_agg(jsonb_build_object(
                       'source', source, 'min', min_replicas, 'max', max_replicas)), '[]')
              from intents where deployment_uid = d.uid) as intents,
           (select a.policy from policy_actions a
             where limited.source = 'policy' and a.deployment_uid = d.uid and a.ended_at is null
             order by a.id desc limit 1) as policy
      from deployments d
      left join lateral (
             select i.source from intents i
              where i.deployment_uid = d.uid and i.max_replicas = 0 and i.source in ('user', 'policy')
              order by i.source = 'policy' limit 1) limited on true
      left join rollouts o on o.deployment_uid = d.uid and o.state <> 'complete' and o.stable <> o.revision
     where d.deleted_at is null"""


# Instances that do not serve yet.
_UNREADY: Final = """
    select i.deployment_uid, i.phase, i.reason, i.message, i.failures,
           i.phase = 'pending' and i.explain is not null
               and not coalesce((i.explain ->> 'freeing')::boolean, false) as unplaced,
           extract(epoch from i.not_before - clock_timestamp())::float8 as again_in_s
      from instances i join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
     where i.phase not in ('running', 'stopping', 'replaced', 'succeeded')
     order by i.created_at, i.id"""
_STARTING: Final = ("scheduled", "starting", "unhealthy")
_FAILED_STARTS: Final = 3


async def read_serving(connection: Reader, known: Mapping[str, ServingLimits]) -> Serving:
    """Reads them in one REPEATABLE READ transaction. `known`: limits that an earlier read has parsed."""
    rows = await connection.fetch(_DEPLOYMENTS)
    limits = {text: known[text] if text in known else _limits(text) for text in {row["limits"] for row in rows}}
    unready: dict[Any, list[Any]] = defaultdict(list)
    for row in await connection.fetch(_UNREADY):
        unready[row["deployment_uid"]].append(row)
    running = await connection.fetch(
        f"""select d.name, i.id, i.epoch, i.deployment_uid, i.revision, r.created_at, coalesce(i.engine, '') as engine,
                  w.proxy_address, {PROXY_SECRET}, w.proxy_certificate
             from instances i
             join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
             join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
             join processes p on p.instance_id = i.id and p.epoch = i.epoch and p.rank = 0
             join workers w on w.id = p.worker_id and w.proxy_address <> '' and w.deleted_at is null
             {JOIN_PROXY_SECRET}
            where i.phase = 'running' order by d.name, i.id"""  # noqa: S608 - constants
    )
    models = {row["name"]: _model(row, limits[row["limits"]], unready[row["uid"]]) for row in rows}
    instances = [
        RunningInstance(
            deployment=row["name"],
            instance=row["id"],
            epoch=row["epoch"],
            address=row["proxy_address"],
            secret=stored_proxy_secret(row),
            certificate=row["proxy_certificate"],
            revision=RevisionKey(row["deployment_uid"], row["revision"], row["created_at"]),
            engine=row["engine"],
            limits=models[row["name"]].limits,
        )
        for row in running
    ]
    stopped = {
        row["name"]: Stopped(row["source"] or "", row["policy"] or "")
        for row in rows
        if _is_stopped(row, models[row["name"]])
    }
    return Serving(models, instances, stopped, limits)


def _is_stopped(row: Any, model: Model) -> bool:
    """Whether a request cannot wake it: a user or a policy stops it, or its spec has no replicas."""
    if model.may_sleep and row["source"] == "policy":
        return False
    return row["source"] is not None or bounds_of(row["replicas"])[1] == 0


def _model(row: Any, limits: ServingLimits, unready: Sequence[Any]) -> Model:
    rule = ReplicaRule(*bounds_of(row["replicas"]), bool(row["dry_run"]))
    intents = [Intent(i["source"], i["max"], "", min_replicas=i["min"]) for i in row["intents"]]
    return Model(
        uid=str(row["uid"]),
        limits=limits,
        may_sleep=rule.may_sleep,
        wanted=rule.wanted(intents),
        starting=sum(instance["phase"] in _STARTING for instance in unready),
        trouble=_trouble(unready),
        load_s=row["load_s"],
        serves=not row["command"] or any("{port}" in part for part in row["command"]),
        rollout=None
        if row["rollout_revision"] is None
        else RolloutRoute(str(row["rollout_revision"]), row["attempt"], row["weight"]),
    )


def _trouble(unready: Sequence[Any]) -> Trouble | None:
    """Why none of these instances can run; None while an instance may still start."""
    troubles = [_trouble_of(instance) for instance in unready]
    if not troubles or None in troubles:
        return None
    return min((trouble for trouble in troubles if trouble is not None), key=lambda trouble: trouble.again_in_s)


def _trouble_of(row: Any) -> Trouble | None:
    why, again_in_s = plain(row["message"] or row["reason"]), row["again_in_s"] or 0.0  # operators alone get it
    if row["phase"] == "failed" or (row["failures"] >= _FAILED_STARTS and again_in_s > 0):
        return Trouble("start_failed", why, max(again_in_s, 0.0))
    if row["phase"] == "pending" and row["unplaced"]:
        return Trouble("no_capacity", why)
    return None


def _limits(stored: str) -> ServingLimits:
    """The present limits, which change in place; the defaults where an older version wrote none."""
    try:
        return ServingLimits.model_validate(orjson.loads(stored))
    except ValueError:  # written by another version
        return ServingLimits()


async def read_started_models(connection: Reader, instances: Collection[str]) -> dict[str, str]:
    """The models with which these instances' servers were started: `MODEL` of `transformers serve MODEL`."""
    rows = await connection.fetch(
        """select i.id, c.payload #>> '{argv,2}' as model
             from instances i join commands c on (c.instance_id, c.epoch, c.rank, c.verb) = (i.id, i.epoch, 0, 'start')
            where i.id = any($1) and c.payload #>> '{argv,1}' = 'serve'""",
        list(instances),
    )
    return {row["id"]: row["model"] for row in rows}


async def read_specs(connection: Reader, revisions: Collection[RevisionKey]) -> dict[RevisionKey, DeploymentSpec]:
    """The specs of these revisions. A spec that this version cannot read, as after a downgrade, is missing."""
    rows = await connection.fetch(
        """select r.deployment_uid, r.generation, r.created_at, r.spec
             from revisions r
             join unnest($1::uuid[], $2::bigint[]) as x (uid, generation)
               on x.uid = r.deployment_uid and x.generation = r.generation""",
        [revision.deployment for revision in revisions],
        [revision.generation for revision in revisions],
    )
    specs: dict[RevisionKey, DeploymentSpec] = {}
    for row in rows:
        with suppress(ValueError):  # a spec that cannot be read must not keep other deployments from being served
            key = RevisionKey(row["deployment_uid"], row["generation"], row["created_at"])
            specs[key] = DeploymentSpec.model_validate(row["spec"])
    return specs
