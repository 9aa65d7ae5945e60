"""Utilization policies as the API shows them: watched objects, verdicts, and freed GPU time."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.policies.effective import EFFECTIVE
from controller.store.views.paging import open_cursor, page_of
from schemas.api.envelopes import Page
from schemas.api.policies import PolicyStatus, PolicyVerdicts, PolicyView, PolicyWatches
from schemas.manifest.policy import PolicySpec

_POLICIES: Final = f"""
    with watched as (
        select e.policy_uid, count(*) as deployments, sum(i.n)::bigint as instances
          from ({EFFECTIVE}) e
          join deployments d on d.uid = e.deployment_uid and d.deleted_at is null
         cross join lateral (
               select count(*) as n from instances i
                where i.deployment_uid = e.deployment_uid
                  and i.phase not in ('succeeded', 'failed', 'stopping', 'replaced')) i
         group by e.policy_uid),
    judged as (
        select v.policy_uid,
               count(*) filter (where v.verdict = 'idle') as idle,
               count(*) filter (where v.verdict = 'busy') as busy,
               count(*) filter (where v.verdict = 'unknown') as unknown
          from policy_verdicts v join instances i on i.id = v.instance_id and i.epoch = v.epoch
         group by v.policy_uid),
    done as (
        select policy_uid, sum(actions)::bigint as actions, sum(would_have_acted)::bigint as would_have_acted,
               sum(gpu_s) as gpu_seconds_freed
          from (select policy_uid, (not dry_run)::int as actions, dry_run::int as would_have_acted,
                       case when not dry_run and action in ('stop', 'scale_down')
                            then gpus * extract(epoch from coalesce(ended_at, now()) - at) else 0 end as gpu_s
                  from policy_actions
                union all select policy_uid, actions, would_have_acted, gpu_s from policy_totals) a
         group by policy_uid)
    select p.*, coalesce(w.deployments, 0) as deployments, coalesce(w.instances, 0) as instances,
           coalesce(j.idle, 0) as idle, coalesce(j.busy, 0) as busy, coalesce(j.unknown, 0) as unknown,
           coalesce(a.actions, 0) as actions, coalesce(a.would_have_acted, 0) as would_have_acted,
           coalesce(a.gpu_seconds_freed, 0)::float8 as gpu_seconds_freed
      from policies p
      left join watched w on w.policy_uid = p.uid
      left join judged j on j.policy_uid = p.uid
      left join done a on a.policy_uid = p.uid"""  # noqa: S608 - a constant, no input


class KnownPolicy(NamedTuple):
    """A stored policy, or one as after an apply."""

    uid: str
    generation: int
    spec: PolicySpec


async def list_policies(connection: Reader, *, limit: int, cursor: str | None = None) -> Page[PolicyView]:
    """One page by name. Raises BadCursorError if the cursor was not issued for this list."""
    after = open_cursor(cursor, (str,)) or [""]
    rows = await connection.fetch(f"{_POLICIES} where p.name > $1 order by p.name limit $2", *after, limit + 1)
    return page_of([_view(row) for row in rows], limit, lambda view: (view.name,))


async def all_policies(connection: Reader) -> list[PolicyView]:
    return [_view(row) for row in await connection.fetch(f"{_POLICIES} order by p.name")]


async def policy_by_name(connection: Reader, name: str) -> PolicyView:
    """Raises NotFoundError if no policy has this name."""
    rows = await connection.fetch(f"{_POLICIES} where p.name = $1", name)
    if not rows:
        raise missing_policy(name)
    return _view(rows[0])


async def named_and_default(connection: Reader, names: Iterable[str]) -> dict[str, KnownPolicy]:
    """These policies and the default policy, by name; unknown names are missing."""
    rows = await connection.fetch("select * from policies where name = any($1) or is_default", list(names))
    return {row["name"]: KnownPolicy(str(row["uid"]), row["generation"], policy_spec(row)) for row in rows}


def policy_spec(row: Mapping[str, Any]) -> PolicySpec:
    """The spec of a row of policies."""
    return PolicySpec.model_validate({**row["spec"], "default": row["is_default"]})


def missing_policy(name: str) -> NotFoundError:
    return NotFoundError(f"no policy is named {name!r}; `gpuward get policies` lists them")


def _view(row: Any) -> PolicyView:
    spec = policy_spec(row)
    return view_of(
        PolicyView,
        row,
        spec=spec,
        warnings=[spec.coverage_warning] if spec.coverage_warning else [],
        status=view_of(PolicyStatus, row, watches=view_of(PolicyWatches, row), verdicts=view_of(PolicyVerdicts, row)),
    )
