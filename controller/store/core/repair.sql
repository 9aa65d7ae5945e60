-- What mends the ledger without guessing. `-- name: what is done` begins a statement; it is of the invariant `name`.
-- Each returns what it changed: the object, and its values before and after. All run while no other writer can.

-- counters_match_claims: the counters are counted again
update devices d
   set claimed_mib = x.mib, claimed_cpu_milli = x.cpu, claims = x.n, exclusive_claims = x.excl
  from (select b.uuid, b.claimed_mib, b.claimed_cpu_milli, b.claims, b.exclusive_claims,
               coalesce(sum(c.memory_mib), 0)::bigint as mib, coalesce(sum(c.cpu_milli), 0)::bigint as cpu,
               count(c.device)::int as n, (count(*) filter (where c.exclusive))::int as excl
          from devices b left join claims c on c.device = b.uuid
         group by b.uuid) x
 where d.uuid = x.uuid
   and (d.claimed_mib, d.claimed_cpu_milli, d.claims, d.exclusive_claims) is distinct from (x.mib, x.cpu, x.n, x.excl)
   and x.mib <= d.memory_mib and x.cpu <= d.cpu_milli and (x.excl = 0 or x.n = 1)
returning 'gpu:' || d.uuid as object,
          jsonb_build_object('memory_mib', x.claimed_mib, 'cpu_milli', x.claimed_cpu_milli, 'claims', x.claims,
                             'exclusive', x.exclusive_claims) as before,
          jsonb_build_object('memory_mib', d.claimed_mib, 'cpu_milli', d.claimed_cpu_milli, 'claims', d.claims,
                             'exclusive', d.exclusive_claims) as after;

-- no_claims_without_phase: claims are released where no process of that start can run
delete from claims c
 using instances i, devices d, workers w
 where i.id = c.instance_id and d.uuid = c.device and w.id = d.worker_id
   and i.phase in ('pending', 'analyzing', 'succeeded', 'failed')
   and (w.confirmed_dead is not null or (w.phase = 'lost' and coalesce(w.fence_until <= now(), false))
        or exists (select 1 from processes p
                    where p.instance_id = c.instance_id and p.epoch = c.epoch and p.rank = c.rank and p.state = 'exited')
        or (not exists (select 1 from processes p
                         where p.instance_id = c.instance_id and p.epoch = c.epoch and p.rank = c.rank)
            and coalesce((select m.state in ('refused', 'withdrawn') from commands m
                           where m.instance_id = c.instance_id and m.epoch = c.epoch and m.rank = c.rank
                             and m.verb = 'start'), c.epoch = i.epoch)))
returning 'instance:' || c.instance_id as object,
          jsonb_build_object('device', c.device, 'epoch', c.epoch, 'memory_mib', c.memory_mib, 'phase', i.phase) as before,
          jsonb_build_object('claims', 0) as after;

-- old_epochs_are_fenced: claims of an older epoch are released where no process of that start can run
delete from claims c
 using instances i, devices d, workers w
 where i.id = c.instance_id and d.uuid = c.device and w.id = d.worker_id
   and c.epoch < i.epoch and i.phase not in ('unreachable', 'replaced', 'stopping')
   and (w.confirmed_dead is not null or (w.phase = 'lost' and coalesce(w.fence_until <= now(), false))
        or exists (select 1 from processes p
                    where p.instance_id = c.instance_id and p.epoch = c.epoch and p.rank = c.rank and p.state = 'exited')
        or (not exists (select 1 from processes p
                         where p.instance_id = c.instance_id and p.epoch = c.epoch and p.rank = c.rank)
            and exists (select 1 from commands m
                         where m.instance_id = c.instance_id and m.epoch = c.epoch and m.rank = c.rank
                           and m.verb = 'start' and m.state in ('refused', 'withdrawn'))))
returning 'instance:' || c.instance_id as object,
          jsonb_build_object('device', c.device, 'epoch', c.epoch, 'memory_mib', c.memory_mib) as before,
          jsonb_build_object('epoch', i.epoch) as after;

-- no_start_without_claims: start commands that were never sent are withdrawn
update commands m set state = 'withdrawn'
  from instances i
 where i.id = m.instance_id and m.verb = 'start' and m.state = 'open' and m.sent_at is null
   and (m.epoch <> i.epoch or i.phase in ('pending', 'analyzing', 'succeeded', 'failed'))
returning 'instance:' || m.instance_id as object,
          jsonb_build_object('command', m.id, 'epoch', m.epoch, 'state', 'open') as before,
          jsonb_build_object('command', m.id, 'epoch', m.epoch, 'state', m.state) as after;

-- no_orphans: commands, verdicts, intents, relocations and ended processes of what is gone are deleted
with m as (delete from commands m where not exists (select 1 from instances i where i.id = m.instance_id)
           returning 'instance:' || m.instance_id as object, jsonb_build_object('command', m.id, 'verb', m.verb) as before),
     p as (delete from processes p where p.state = 'exited' and not exists (select 1 from instances i where i.id = p.instance_id)
           returning 'instance:' || p.instance_id as object, jsonb_build_object('process', p.epoch || '/' || p.rank) as before),
     v as (delete from policy_verdicts v where not exists (select 1 from instances i where i.id = v.instance_id)
           returning 'instance:' || v.instance_id as object, jsonb_build_object('verdict', v.verdict) as before),
     n as (delete from intents n where not exists (select 1 from deployments d where d.uid = n.deployment_uid)
           returning 'deployment:' || n.deployment_uid as object,
                     jsonb_build_object('intent', n.source, 'max_replicas', n.max_replicas) as before),
     r as (delete from relocations r where not exists (select 1 from deployments d where d.uid = r.deployment_uid)
           returning 'deployment:' || r.deployment_uid as object,
                     jsonb_build_object('relocation', r.id, 'instance', r.instance_id) as before)
select object, before, '{}'::jsonb as after
  from (select * from m union all select * from p union all select * from v union all select * from n
        union all select * from r) x;

-- intents_have_one_number: a floor is removed where only the autoscaler has one
update intents n set min_replicas = 0
  from (select deployment_uid, source, min_replicas from intents) old
 where old.deployment_uid = n.deployment_uid and old.source = n.source
   and n.source <> 'autoscaler' and n.min_replicas <> 0
returning 'deployment:' || n.deployment_uid as object,
          jsonb_build_object('intent', n.source, 'min_replicas', old.min_replicas) as before,
          jsonb_build_object('intent', n.source, 'min_replicas', n.min_replicas) as after;

-- relocations_move_what_exists: a relocation of an instance that is gone is abandoned
update relocations r
   set state = 'abandoned', ended_at = clock_timestamp(), message = 'its instance is gone (found by an audit)'
 where r.state = 'moving' and not exists (select 1 from instances i where i.id = r.instance_id)
returning 'deployment:' || r.deployment_uid as object,
          jsonb_build_object('relocation', r.id, 'instance', r.instance_id, 'state', 'moving') as before,
          jsonb_build_object('relocation', r.id, 'state', r.state) as after;

-- relocations_end_once: the times of relocations follow their states, which decisions rest on
update relocations r
   set ended_at = case when r.state in ('waiting', 'moving') then null else coalesce(r.ended_at, clock_timestamp()) end,
       started_at = case when r.state = 'moving' then coalesce(r.started_at, clock_timestamp()) else r.started_at end
  from (select id, started_at, ended_at from relocations) old
 where old.id = r.id
   and ((r.state in ('waiting', 'moving')) <> (r.ended_at is null) or (r.state = 'moving' and r.started_at is null))
returning 'deployment:' || r.deployment_uid as object,
          jsonb_build_object('relocation', r.id, 'state', r.state, 'started_at', old.started_at, 'ended_at', old.ended_at)
              as before,
          jsonb_build_object('relocation', r.id, 'state', r.state, 'started_at', r.started_at, 'ended_at', r.ended_at)
              as after;

-- only_limits_stay_open: what limits nothing has ended when it was written
update policy_actions a set ended_at = a.at
 where a.ended_at is null and (a.action = 'notify' or a.dry_run)
returning 'deployment:' || a.deployment_uid as object,
          jsonb_build_object('action', a.id, 'ended_at', null) as before,
          jsonb_build_object('action', a.id, 'ended_at', a.ended_at) as after;

-- actions_end_with_their_deployment: actions on deployments that are gone end now
update policy_actions a set ended_at = clock_timestamp()
 where a.ended_at is null and not exists (select 1 from deployments d where d.uid = a.deployment_uid)
returning 'deployment:' || a.deployment_uid as object,
          jsonb_build_object('action', a.id, 'ended_at', null) as before,
          jsonb_build_object('action', a.id, 'ended_at', a.ended_at) as after;

-- webhooks_end_once: a message that was delivered is finished
update webhook_deliveries w set finished_at = clock_timestamp()
 where w.delivered and w.finished_at is null
returning 'webhook:' || w.id as object,
          jsonb_build_object('finished_at', null) as before,
          jsonb_build_object('finished_at', w.finished_at) as after;

-- webhooks_have_an_action: a message about an action that is gone is given up
update webhook_deliveries w set finished_at = clock_timestamp(), error = 'its policy action is gone (found by an audit)'
 where w.finished_at is null and not exists (select 1 from policy_actions a where a.id = w.action_id)
returning 'webhook:' || w.id as object,
          jsonb_build_object('finished_at', null) as before,
          jsonb_build_object('finished_at', w.finished_at, 'delivered', w.delivered) as after;

-- webhooks_are_due: the next attempt of a message is made now
update webhook_deliveries w set not_before = clock_timestamp()
  from (select id, not_before from webhook_deliveries) old
 where old.id = w.id and w.finished_at is null and w.not_before > now() + interval '1 day'
returning 'webhook:' || w.id as object,
          jsonb_build_object('not_before', old.not_before) as before,
          jsonb_build_object('not_before', w.not_before) as after;
