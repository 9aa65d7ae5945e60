-- The invariants. Each is a query whose rows violate it; `-- name: statement` begins one; columns are the evidence.
-- Transitional states are allowed for: all queries may run at any moment, in one snapshot.

-- counters_match_claims: a device's counters equal a recount of its claims
select d.uuid as device, d.claimed_mib, d.claimed_cpu_milli, d.claims, d.exclusive_claims,
       coalesce(x.mib, 0) as recounted_mib, coalesce(x.cpu, 0) as recounted_cpu_milli,
       coalesce(x.n, 0) as recounted_claims, coalesce(x.excl, 0) as recounted_exclusive
  from devices d
  left join (select device, sum(memory_mib)::bigint as mib, sum(cpu_milli)::bigint as cpu, count(*) as n,
                    count(*) filter (where exclusive) as excl
               from claims group by device) x on x.device = d.uuid
 where (d.claimed_mib, d.claimed_cpu_milli, d.claims::bigint, d.exclusive_claims::bigint)
       is distinct from (coalesce(x.mib, 0), coalesce(x.cpu, 0), coalesce(x.n, 0), coalesce(x.excl, 0));

-- memory_not_overclaimed: live claims never exceed a device's memory or processors
select d.uuid as device, d.memory_mib, sum(c.memory_mib)::bigint as claimed_mib,
       d.cpu_milli, sum(c.cpu_milli)::bigint as claimed_cpu_milli
  from claims c join devices d on d.uuid = c.device
 group by d.uuid, d.memory_mib, d.cpu_milli
having sum(c.memory_mib) > d.memory_mib or sum(c.cpu_milli) > d.cpu_milli;

-- exclusive_is_alone: an exclusive claim is the only claim on its device
select c.device, count(*) as claims, count(*) filter (where c.exclusive) as exclusive, array_agg(c.instance_id) as instances
  from claims c
 group by c.device
having count(*) filter (where c.exclusive) > 0 and count(*) > 1;

-- exclusive_is_whole: an exclusive claim records the GPU's full memory, and is on no host
select c.device, c.instance_id as instance, c.memory_mib, d.memory_mib as device_mib, d.kind
  from claims c join devices d on d.uuid = c.device
 where c.exclusive and (d.kind <> 'gpu' or c.memory_mib <> d.memory_mib);

-- no_claims_without_phase: pending, analyzing, succeeded and failed instances hold no claims
select i.id as instance, i.phase, count(*) as claims
  from instances i join claims c on c.instance_id = i.id
 where i.phase in ('pending', 'analyzing', 'succeeded', 'failed')
 group by i.id, i.phase;

-- placed_holds_claims: an instance that is placed holds claims of its epoch, with exactly one on a host for each rank
select i.id as instance, i.phase, i.epoch, x.rank, coalesce(x.hosts, 0) as host_claims
  from instances i
  left join (select c.instance_id, c.epoch, c.rank, count(*) filter (where d.kind = 'host') as hosts
               from claims c join devices d on d.uuid = c.device
              group by c.instance_id, c.epoch, c.rank) x on x.instance_id = i.id and x.epoch = i.epoch
 where i.phase in ('scheduled', 'starting', 'running', 'unhealthy') and coalesce(x.hosts, 0) <> 1;

-- rank_on_one_worker: the claims of one start and rank are on one worker
select c.instance_id as instance, c.epoch, c.rank, count(distinct d.worker_id) as workers
  from claims c join devices d on d.uuid = c.device
 group by c.instance_id, c.epoch, c.rank
having count(distinct d.worker_id) > 1;

-- worker_has_one_rank: no two ranks of one start share a worker
select c.instance_id as instance, c.epoch, d.worker_id::text as worker, count(distinct c.rank) as ranks
  from claims c join devices d on d.uuid = c.device
 group by c.instance_id, c.epoch, d.worker_id
having count(distinct c.rank) > 1;

-- old_epochs_are_fenced: only instances whose end is not confirmed hold claims of an older epoch; no claim is of a newer one
select c.device, c.instance_id as instance, c.epoch, i.epoch as present_epoch, i.phase
  from claims c join instances i on i.id = c.instance_id
 where c.epoch > i.epoch
    or (c.epoch < i.epoch and i.phase not in ('unreachable', 'replaced', 'stopping'));

-- no_claims_on_deleted_worker: a deleted worker's claims are released within a minute
select c.device, c.instance_id as instance, w.name as worker, w.deleted_at
  from claims c join devices d on d.uuid = c.device join workers w on w.id = d.worker_id
 where w.deleted_at < now() - interval '1 min';

-- live_process_holds_claims: a process that is alive and not fenced holds claims of its epoch on its worker
select p.instance_id as instance, p.epoch, p.rank, p.state, w.name as worker
  from processes p join workers w on w.id = p.worker_id
 where p.state <> 'exited' and w.deleted_at is null
   and not (w.phase = 'lost' and coalesce(w.fence_until <= now(), false))
   and not exists (select 1 from claims c join devices d on d.uuid = c.device
                    where c.instance_id = p.instance_id and c.epoch = p.epoch and c.rank = p.rank
                      and d.worker_id = p.worker_id);

-- exclusive_gpu_runs_one: a GPU with an exclusive claim has at most one live process
select c.device, count(*) as live, array_agg(p.instance_id || '/' || p.epoch || '/' || p.rank) as processes
  from claims c
  join devices d on d.uuid = c.device and d.kind = 'gpu'
  join processes p on p.instance_id = c.instance_id and p.epoch = c.epoch and p.rank = c.rank and p.state <> 'exited'
 group by c.device
having bool_or(c.exclusive) and count(*) > 1;

-- no_start_without_claims: an open start command belongs to an instance that is placed, at its present epoch
select m.id as command, m.instance_id as instance, m.epoch, i.epoch as present_epoch, i.phase
  from commands m join instances i on i.id = m.instance_id
 where m.verb = 'start' and m.state = 'open' and m.sent_at is null
   and (m.epoch <> i.epoch or i.phase in ('pending', 'analyzing', 'succeeded', 'failed'));

-- instances_have_a_deployment: no instance outlives its deployment's row
select i.id as instance, i.deployment_uid::text as deployment_uid, i.phase
  from instances i
 where not exists (select 1 from deployments d where d.uid = i.deployment_uid);

-- revisions_exist: a deployment's newest revision exists and is not newer than the deployment
select d.uid::text as deployment_uid, d.name, d.generation, d.revision
  from deployments d
 where d.revision > d.generation
    or not exists (select 1 from revisions r where r.deployment_uid = d.uid and r.generation = d.revision);

-- tombstones_go: a deleted deployment without instances is removed within five minutes
select d.uid::text as deployment_uid, d.name, d.deleted_at
  from deployments d
 where d.deleted_at < now() - interval '5 min'
   and not exists (select 1 from instances i where i.deployment_uid = d.uid);

-- no_silent_waiting: an instance that is pending for longer than five minutes has a recorded reason
select i.id as instance, i.phase, i.phase_since
  from instances i
 where i.phase in ('pending', 'analyzing') and i.phase_since < now() - interval '5 min'
   and i.reason = '' and i.message = '' and i.explain is null;

-- phases_are_known: every instance's phase is a known one
select i.id as instance, i.phase
  from instances i
 where i.phase not in ('pending', 'analyzing', 'scheduled', 'starting', 'running', 'unhealthy', 'backoff', 'succeeded',
                       'failed', 'unreachable', 'replaced', 'stopping');

-- one_lease: there is exactly one lease row
select count(*) as rows from lease having count(*) <> 1;

-- no_orphans: each claim, process, command, verdict, intent and relocation belongs to a row that exists
select 'claim' as kind, c.device || '/' || c.instance_id || '/' || c.epoch as id, c.instance_id as missing
  from claims c where not exists (select 1 from instances i where i.id = c.instance_id)
 union all
select 'process', p.instance_id || '/' || p.epoch || '/' || p.rank, p.instance_id
  from processes p where not exists (select 1 from instances i where i.id = p.instance_id)
 union all
select 'command', m.id::text, m.instance_id
  from commands m where not exists (select 1 from instances i where i.id = m.instance_id)
 union all
select 'verdict', v.instance_id, v.instance_id
  from policy_verdicts v where not exists (select 1 from instances i where i.id = v.instance_id)
 union all
select 'intent', n.deployment_uid || '/' || n.source, n.deployment_uid::text
  from intents n where not exists (select 1 from deployments d where d.uid = n.deployment_uid)
 union all
select 'relocation', r.id::text, r.deployment_uid::text
  from relocations r where not exists (select 1 from deployments d where d.uid = r.deployment_uid);

-- intents_have_one_number: the autoscaler's floor is its cap, and other intents have no floor
select n.deployment_uid::text as deployment_uid, n.source, n.min_replicas, n.max_replicas
  from intents n
 where case n.source when 'autoscaler' then n.min_replicas <> n.max_replicas else n.min_replicas <> 0 end;

-- relocations_end_once: a relocation has an end if it is over, and a begin if it is in progress
select r.id as relocation, r.instance_id as instance, r.state, r.started_at, r.ended_at
  from relocations r
 where (r.state in ('waiting', 'moving')) <> (r.ended_at is null)
    or (r.state = 'moving' and r.started_at is null);

-- relocations_move_what_exists: a relocation in progress moves an instance that exists
select r.id as relocation, r.instance_id as instance, r.epoch, r.started_at
  from relocations r join deployments d on d.uid = r.deployment_uid and d.deleted_at is null
 where r.state = 'moving' and r.started_at < now() - interval '5 min'
   and not exists (select 1 from instances i where i.id = r.instance_id);

-- relocations_stay_in_their_deployment: an instance and its replacement are two instances of one deployment
select r.id as relocation, r.instance_id as instance, r.copy_id as replacement, i.deployment_uid::text as deployment_uid
  from relocations r join instances i on i.id in (r.instance_id, r.copy_id)
 where r.state in ('waiting', 'moving') and (i.deployment_uid <> r.deployment_uid or r.copy_id = r.instance_id);

-- only_limits_stay_open: a policy action that limits nothing, a notification or a dry run, has ended at once
select a.id as action, a.policy, a.deployment, a.action as kind, a.dry_run, a.at
  from policy_actions a
 where a.ended_at is null and (a.action = 'notify' or a.dry_run);

-- actions_end_with_their_deployment: a policy action ends within five minutes of its deployment's end
select a.id as action, a.policy, a.deployment, a.deployment_uid::text as deployment_uid, a.at
  from policy_actions a
 where a.ended_at is null and a.at < now() - interval '5 min'
   and not exists (select 1 from deployments d where d.uid = a.deployment_uid)
   and not exists (select 1 from events e
                    where e.objects @> array['deployment:' || a.deployment_uid] and e.at > now() - interval '5 min')
   and exists (select 1 from lease where acquired_at < now() - interval '5 min');

-- webhooks_end_once: a message that was delivered is finished
select w.id::text as webhook, w.url, w.attempts, w.finished_at
  from webhook_deliveries w
 where w.delivered and w.finished_at is null;

-- webhooks_have_an_action: a message that is still to be delivered tells of a policy action that exists
select w.id::text as webhook, w.url, w.action_id as action, w.attempts
  from webhook_deliveries w
 where w.finished_at is null and not exists (select 1 from policy_actions a where a.id = w.action_id);

-- webhooks_are_due: a message that is still to be delivered has its next attempt within a day
select w.id::text as webhook, w.url, w.attempts, w.not_before
  from webhook_deliveries w
 where w.finished_at is null and w.not_before > now() + interval '1 day';
