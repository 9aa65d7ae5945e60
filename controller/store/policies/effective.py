"""The effective policy of a deployment: its own, inline or by name, else the default policy, if there is one.

`utilization_policy: none` turns off the default too; no policy can have that name. The default does not apply to
deployments without GPUs, since they have no utilization.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from controller.domain.policies import EffectivePolicy
from controller.store.core.database import Reader
from schemas.manifest.policy import UtilizationPolicy

# One row for each deployment with an effective policy, also deleted deployments. A subquery for FROM.
# For an inline policy, `policy` is empty, `policy_uid` null, and the generation is the deployment's.
EFFECTIVE: Final = """
    select d.uid as deployment_uid,
           case written.kind when 'object' then 'inline' when 'string' then 'named' else 'default' end as origin,
           coalesce(p.name, '') as policy,
           p.uid as policy_uid,
           coalesce(p.generation, d.generation) as policy_generation,
           coalesce(p.spec, d.spec -> 'utilization_policy') as policy_spec
      from deployments d
     cross join lateral (select coalesce(jsonb_typeof(d.spec -> 'utilization_policy'), 'null') as kind) written
      left join policies p
             on (written.kind = 'string' and p.name = d.spec ->> 'utilization_policy')
             or (written.kind = 'null' and p.is_default
                 and d.spec #> '{resources,gpus}' is distinct from '0'::jsonb)
     where written.kind = 'object' or p.uid is not null"""


@lru_cache(maxsize=1024)
def _parse(raw: bytes) -> UtilizationPolicy:
    return UtilizationPolicy.model_validate(orjson.loads(raw))


def policy_from_json(value: Any) -> UtilizationPolicy:
    """Parses a stored policy; equal policies are parsed once."""
    return _parse(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


async def effective_policies(connection: Reader, uids: Iterable[str]) -> dict[str, EffectivePolicy]:
    """The effective policies of these deployments by uid; deployments without one are missing."""
    query = f"select * from ({EFFECTIVE}) e where e.deployment_uid = any($1::uuid[])"  # noqa: S608 - constants
    rows = await connection.fetch(query, list(uids))
    return {str(row["deployment_uid"]): effective_policy(row) for row in rows}


def effective_policy(row: Mapping[str, Any]) -> EffectivePolicy:
    """The policy of a row of `EFFECTIVE`."""
    return EffectivePolicy(
        name=row["policy"],
        uid=None if row["policy_uid"] is None else str(row["policy_uid"]),
        generation=row["policy_generation"],
        spec=policy_from_json(row["policy_spec"]),
    )
