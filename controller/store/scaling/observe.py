"""The autoscaler's reads: deployments whose replicas follow the requests, and the reports of gateways and engines."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from controller.domain.instances import Intent
from controller.domain.phases import FINAL, HOLDS_CLAIMS, InstancePhase
from controller.domain.scaling import EngineLoad, GatewayLoad, PolicyCap, Replicas, ScalingSnapshot, StoredScaling
from controller.domain.wanted import POLICY, follows_requests, scales
from controller.store.deployments.specs import spec_from_json
from controller.store.policies.effective import effective_policies

_SCALED: Final = """
    select uid from deployments
     where deleted_at is null and jsonb_typeof(spec -> 'replicas') = 'object'
    union select deployment_uid from scaling_status"""
_DEPLOYMENTS: Final = """
    select d.uid, d.name, d.generation, d.spec,
           (select coalesce(jsonb_agg(jsonb_build_object('source', source, 'min', min_replicas, 'max', max_replicas,
                                                         'reason', reason,
                                                         'set_at', extract(epoch from created_at),
                                                         'outgrown_s', extract(epoch from now() - o.since))
                                      order by source), '[]')
              from intents left join outgrown_caps o using (deployment_uid, source)
             where deployment_uid = d.uid) as intents,
           (select coalesce(jsonb_object_agg(phase, n), '{}')
              from (select phase, count(*) as n from instances
                     where deployment_uid = d.uid group by phase) x) as phases,
           (select engine from instances where deployment_uid = d.uid and engine <> ''
             order by created_at desc limit 1) as engine,
           (select (need ->> 'sequences')::int from revisions
             where deployment_uid = d.uid and generation = d.revision) as sequences,
           s.number, s.reason, s.message, s.silent, s.dry_run
      from deployments d left join scaling_status s on s.deployment_uid = d.uid
     where d.uid = any($1::uuid[]) and d.deleted_at is null and jsonb_typeof(d.spec -> 'replicas') = 'object'"""
_ACTED: Final = """
    select distinct on (deployment_uid) deployment_uid, evidence ->> 'window_s' as window_s from policy_actions
     where deployment_uid = any($1::uuid[]) and action = 'scale_down' and not dry_run
     order by deployment_uid, id desc"""
_STORED: Final = "select deployment_uid from scaling_status where deployment_uid = any($1::uuid[])"
_GATEWAYS: Final = "select id, name, beat from gateways order by name"
_DEMAND: Final = "select gateway_id, deployment_uid, mean, in_flight, waiting, arrived from gateway_demand"
_WAKES: Final = """
    select deployment_uid, source = 'user' as by_user, request_id,
           extract(epoch from expires_at - clock_timestamp())::float8 as left_s
      from wakes where expires_at > clock_timestamp() order by created_at"""
_ENGINES: Final = """
    with recent as (select clock_timestamp() - make_interval(secs => $1) as since)
    select i.deployment_uid, case when l.at > since then l.queued end as queued,
           case when l.at > since then l.kv_use end as kv_use,
           case when l.requests_at > since then l.requests end as requests
      from recent cross join engine_loads l
      join instances i on i.id = l.instance_id and i.epoch = l.epoch and i.phase = 'running'
     where greatest(l.at, l.requests_at) > since"""
_LEAVING: Final = frozenset({InstancePhase.STOPPING, InstancePhase.REPLACED})


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway process. `beat` rises while it reports."""

    id: str
    name: str
    beat: int


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of gateways, engines and operators in one snapshot, by deployment."""

    gateways: tuple[Gateway, ...] = ()  # also those that no longer report
    loads: Mapping[str, Mapping[str, GatewayLoad]] = field(default_factory=dict)  # by gateway
    wakes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # each gateway's first waiting request, by age
    awake_for_s: Mapping[str, float] = field(default_factory=dict)  # by an operator's request
    engines: Mapping[str, Sequence[EngineLoad]] = field(default_factory=dict)  # those of running replicas


async def list_scaled(connection: Any) -> list[str]:
    """Returns the uids of all deployments whose replicas follow the requests, or did so until now."""
    return [str(row["uid"]) for row in await connection.fetch(_SCALED)]


async def list_stored(connection: Any, uids: Collection[str]) -> list[str]:
    """Returns those of these deployments that have a stored status."""
    return [str(row["deployment_uid"]) for row in await connection.fetch(_STORED, list(uids))] if uids else []


async def observe_scaling(connection: Any, uids: Collection[str]) -> dict[str, ScalingSnapshot]:
    """Reads deployments. Those that are gone, or whose replicas are a number, are missing."""
    rows = await connection.fetch(_DEPLOYMENTS, list(uids))
    scaled = {snapshot.uid: snapshot for snapshot in map(_snapshot, rows) if scales(snapshot.spec)}
    capped = [uid for uid, snapshot in scaled.items() if snapshot.cap is not None]
    windows = await _windows(connection, capped) if capped else {}
    return scaled | {uid: _with_window(scaled[uid], windows.get(uid)) for uid in capped}


async def _windows(connection: Any, uids: Sequence[str]) -> dict[str, float]:
    """The window of each deployment's effective policy, else of the policy whose action set the cap."""
    windows = {uid: policy.spec.time_window for uid, policy in (await effective_policies(connection, uids)).items()}
    missing = [uid for uid in uids if uid not in windows]
    rows = await connection.fetch(_ACTED, missing) if missing else []
    return windows | {str(row["deployment_uid"]): float(row["window_s"]) for row in rows if row["window_s"] is not None}


def _with_window(snapshot: ScalingSnapshot, window_s: float | None) -> ScalingSnapshot:
    return snapshot if snapshot.cap is None else replace(snapshot, cap=replace(snapshot.cap, window_s=window_s))


async def read_reports(connection: Any, *, engines_for_s: float) -> Reports:
    """Reads in one REPEATABLE READ transaction. `engines_for_s`: an engine's report counts for this long."""
    gateways = tuple(Gateway(str(r["id"]), r["name"], r["beat"]) for r in await connection.fetch(_GATEWAYS))
    loads: defaultdict[str, dict[str, GatewayLoad]] = defaultdict(dict)
    for row in await connection.fetch(_DEMAND):
        load = GatewayLoad(row["mean"], row["in_flight"], row["waiting"], row["arrived"])
        loads[str(row["deployment_uid"])][str(row["gateway_id"])] = load
    wakes: defaultdict[str, list[str]] = defaultdict(list)
    awake: dict[str, float] = {}
    for row in await connection.fetch(_WAKES):
        if row["by_user"]:
            awake[str(row["deployment_uid"])] = row["left_s"]
        else:
            wakes[str(row["deployment_uid"])].append(row["request_id"])
    engines: defaultdict[str, list[EngineLoad]] = defaultdict(list)
    for row in await connection.fetch(_ENGINES, engines_for_s):
        engines[str(row["deployment_uid"])].append(EngineLoad(row["queued"], row["kv_use"], row["requests"]))
    return Reports(gateways, loads, wakes, awake, engines)


def _snapshot(row: Any) -> ScalingSnapshot:
    spec = spec_from_json(row["spec"])
    return ScalingSnapshot(
        uid=str(row["uid"]),
        name=row["name"],
        generation=row["generation"],
        spec=spec,
        intents=tuple(Intent(i["source"], i["max"], i["reason"], min_replicas=i["min"]) for i in row["intents"]),
        replicas=_replicas(row["phases"]),
        engine=row["engine"] or "",
        sequences=row["sequences"],
        stored=None
        if row["number"] is None
        else StoredScaling(row["number"], row["reason"], row["message"], tuple(row["silent"]), row["dry_run"]),
        cap=_cap(row["intents"]) if follows_requests(spec) else None,
    )


def _cap(intents: Sequence[Mapping[str, Any]]) -> PolicyCap | None:
    """The cap of a policy's `scale_down`. A policy's stop does not count: a request or a user ends it."""
    for intent in intents:
        if intent["source"] == POLICY and intent["max"] > 0:
            return PolicyCap(intent["max"], intent["set_at"], None, intent["outgrown_s"])
    return None


def _replicas(phases: Mapping[str, int]) -> Replicas:
    counts = {InstancePhase(name): number for name, number in phases.items()}
    serving, starting = InstancePhase.RUNNING, HOLDS_CLAIMS - _LEAVING - {InstancePhase.RUNNING, InstancePhase.BACKOFF}
    return Replicas(
        running=counts.get(serving, 0),
        placed=sum(counts.get(phase, 0) for phase in starting),
        pending=sum(n for phase, n in counts.items() if phase not in {serving} | starting | _LEAVING | FINAL),
        unhealthy=counts.get(InstancePhase.UNHEALTHY, 0),
        failed=sum(counts.get(phase, 0) for phase in FINAL | {InstancePhase.BACKOFF}),
    )
