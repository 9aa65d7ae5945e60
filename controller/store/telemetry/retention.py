"""Retention of events, join tokens, silent gateways, wakes, webhook deliveries, relocations and policies' actions.

Deletes in bounded portions, so that no delete blocks others for long.
"""

from typing import Any, Final

_PORTION: Final = 5_000
_TOKENS_KEPT_DAYS: Final = 30
_GATEWAYS_KEPT_HOURS: Final = 1  # of silence; until then their demand is unknown, and nothing is scaled down


async def prune(connection: Any, *, keep_events_days: int, keep_actions_days: int) -> int:
    """Deletes one portion of old rows; returns the number of deleted events. Sums of deleted actions are kept."""
    gone = await connection.fetchval(
        """with old as (delete from events where id in (
               select id from events where at < now() - make_interval(days => $1) order by id limit $2) returning 1)
           select count(*) from old""",
        keep_events_days,
        _PORTION,
    )
    await connection.execute(
        "delete from join_tokens where coalesce(used_at, revoked_at, expires_at) < now() - make_interval(days => $1)",
        _TOKENS_KEPT_DAYS,
    )
    await connection.execute(
        "delete from gateways where seen_at < now() - make_interval(hours => $1)", _GATEWAYS_KEPT_HOURS
    )
    await connection.execute(
        "delete from queue_places where at < now() - make_interval(hours => $1)", _GATEWAYS_KEPT_HOURS
    )
    await connection.execute(
        """delete from gateway_demand g
            where not exists (select 1 from deployments d where d.uid = g.deployment_uid)"""
    )
    await connection.execute(
        """delete from gateway_outcomes g
            where not exists (select 1 from rollouts r where r.deployment_uid = g.deployment_uid
                                 and r.attempt = g.attempt and r.state <> 'complete')"""
    )
    await connection.execute("delete from wakes where expires_at < now()")
    await connection.execute(
        "delete from engine_loads l where not exists (select 1 from instances i where i.id = l.instance_id)"
    )
    await connection.execute(
        """delete from webhook_deliveries where id in (
               select id from webhook_deliveries where finished_at < now() - make_interval(days => $1) limit $2)""",
        keep_events_days,
        _PORTION,
    )
    await connection.execute(
        """delete from relocations where id in (
               select id from relocations where ended_at < now() - make_interval(days => $1) order by id limit $2)""",
        keep_events_days,
        _PORTION,
    )
    await connection.execute(
        """with old as (delete from policy_actions where id in (
               select id from policy_actions where ended_at < now() - make_interval(days => $1) order by id limit $2)
               returning *)
           insert into policy_totals as t (policy, policy_uid, actions, would_have_acted, gpu_s)
           select policy, policy_uid, count(*) filter (where not dry_run), count(*) filter (where dry_run),
                  coalesce(sum(gpus * greatest(extract(epoch from ended_at - at), 0))
                           filter (where not dry_run and action <> 'notify'), 0)
             from old group by policy, policy_uid
           on conflict (policy_uid, policy) do update
              set actions = t.actions + excluded.actions,
                  would_have_acted = t.would_have_acted + excluded.would_have_acted,
                  gpu_s = t.gpu_s + excluded.gpu_s""",
        keep_actions_days,
        _PORTION,
    )
    return int(gone)
