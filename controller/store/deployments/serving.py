"""Running instances with their workers' proxies, as the gateway needs them, in one read."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from controller.domain.access.redaction import plain
from controller.domain.instances import IntentFacts
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
    """One revision, whose spec never changes.

    Attributes:
        deployment: its uid.
        generation: its number.
        created_at: tells it from one of the same number that the ledger has lost.
    """

    deployment: Any
    generation: int
    created_at: datetime


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
    certificate: str = ""  # SHA-256 of the proxy's, in hexadecimal digits; empty: it speaks no TLS


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a deployment wants no replicas.

    Attributes:
        source: of the limit: user or policy; empty: its spec asks for none.
        policy: its name; empty: not a policy, or an inline one.
    """

    source: str
    policy: str = ""

    def remedy(self, deployment: str) -> str:
        """What starts it again."""
        return f"gpuward start {deployment}" if self.source else f"gpuward scale {deployment} 1"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a deployment that shall run does not: what its clients are told.

    Attributes:
        code: `no_capacity` or `start_failed`.
        why: as `gpuward ps` shows it.
        again_in_s: until the next attempt; 0: at any time.
    """

    code: str
    why: str
    again_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RolloutRoute:
    """A rollout under way, as the gateway needs it.

    Attributes:
        revision: the new one.
        attempt: by which requests are counted.
        weight: percent of the requests for the new one; None: by least load over all replicas.
    """

    revision: str
    attempt: int
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A live deployment as the gateway serves it.

    Attributes:
        uid: of the deployment.
        limits: how its requests are served.
        may_sleep: a request wakes it.
        wanted: number of wanted replicas.
        starting: instances that hold claims and do not run yet.
        trouble: why none runs, and none will without a change or another attempt; None: one may at any time.
        load_s: how long its last start took; None: unknown.
        serves: it takes requests; a command without a port does not.
        rollout: of its newest revision; None: it is complete.
    """

    uid: str
    limits: ServingLimits
    may_sleep: bool
    wanted: int
    starting: int
    trouble: Trouble | None = None
    load_s: float | None = None
    serves: bool = True
    rollout: RolloutRoute | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """All live deployments by name, the running instances, and which are stopped.

    Attributes:
        limits: those of the deployments, by the text from which they were parsed.
    """

    models: Mapping[str, Model]
    instances: list[RunningInstance]
    stopped: Mapping[str, Stopped]
    limits: Mapping[str, ServingLimits]

    @property
    def names(self) -> frozenset[str]:
        """The names of all live deployments."""
        return frozenset(self.models)


# A user's stop goes before a policy's: it is the one that lasts.
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


# Instances on their way: none of them serves yet.
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
    """Reads them.

    Args:
        connection: must be in one REPEATABLE READ transaction.
        known: limits that an earlier read has parsed.
    """
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
    found = {row["name"]: _model(row, limits[row["limits"]], unready[row["uid"]]) for row in rows}
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
            limits=found[row["name"]].limits,
        )
        for row in running
    ]
    stopped = {
        row["name"]: Stopped(row["source"] or "", row["policy"] or "")
        for row in rows
        if _is_stopped(row, found[row["name"]])
    }
    return Serving(found, instances, stopped, limits)


def _is_stopped(row: Any, model: Model) -> bool:
    """Whether a request cannot wake it: a user or a policy stops it, or it asks for no replicas."""
    if model.may_sleep and row["source"] == "policy":
        return False
    return row["source"] is not None or bounds_of(row["replicas"])[1] == 0


def _model(row: Any, limits: ServingLimits, unready: Sequence[Any]) -> Model:
    rule = ReplicaRule(*bounds_of(row["replicas"]), bool(row["dry_run"]))
    intents = [IntentFacts(i["source"], i["max"], "", min_replicas=i["min"]) for i in row["intents"]]
    return Model(
        uid=str(row["uid"]),
        limits=limits,
        may_sleep=rule.may_sleep,
        wanted=rule.wanted(intents),
        starting=sum(one["phase"] in _STARTING for one in unready),
        trouble=_trouble(unready),
        load_s=row["load_s"],
        serves=not row["command"] or any("{port}" in part for part in row["command"]),
        rollout=None
        if row["rollout_revision"] is None
        else RolloutRoute(str(row["rollout_revision"]), row["attempt"], row["weight"]),
    )


def _trouble(unready: Sequence[Any]) -> Trouble | None:
    """What keeps all of these from running; None while one of them may still get there."""
    troubles = [_trouble_of(one) for one in unready]
    if not troubles or None in troubles:
        return None
    return min((one for one in troubles if one is not None), key=lambda one: one.again_in_s)


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
    """The models with which these instances' servers were started, as `transformers serve MODEL` names them."""
    rows = await connection.fetch(
        """select i.id, c.payload #>> '{argv,2}' as model
             from instances i join commands c on (c.instance_id, c.epoch, c.rank, c.verb) = (i.id, i.epoch, 0, 'start')
            where i.id = any($1) and c.payload #>> '{argv,1}' = 'serve'""",
        list(instances),
    )
    return {row["id"]: row["model"] for row in rows}


async def read_specs(connection: Reader, revisions: Collection[RevisionKey]) -> dict[RevisionKey, DeploymentSpec]:
    """The specs of these revisions. One that this version cannot read, as after a downgrade, is missing."""
    rows = await connection.fetch(
        """select r.deployment_uid, r.generation, r.created_at, r.spec
             from revisions r
             join unnest($1::uuid[], $2::bigint[]) as x (uid, generation)
               on x.uid = r.deployment_uid and x.generation = r.generation""",
        [one.deployment for one in revisions],
        [one.generation for one in revisions],
    )
    found: dict[RevisionKey, DeploymentSpec] = {}
    for row in rows:
        with suppress(ValueError):  # one that cannot be read must not stop the others from being served
            key = RevisionKey(row["deployment_uid"], row["generation"], row["created_at"])
            found[key] = DeploymentSpec.model_validate(row["spec"])
    return found
