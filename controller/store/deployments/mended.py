"""Which instances lacked a secret for their start, and may have it by now."""

from typing import Final

from controller.domain.secret_scopes import SECRET_REFUSALS

_CODES: Final = ", ".join(f"'{code}'" for code in SECRET_REFUSALS)
# Of an instance `i`. A secret that was set while its start was refused counts as set since.
MENDED: Final = f"""
    (i.reason in ({_CODES}) and exists (
         select 1 from commands o
          cross join lateral jsonb_each_text(case jsonb_typeof(o.payload -> 'env_secrets') when 'object'
                                                  then o.payload -> 'env_secrets' else '{{}}' end) v
           join secrets s on s.name = v.value
          where o.instance_id = i.id and o.epoch = i.epoch and o.verb = 'start' and o.state = 'refused'
            and s.changed_at > o.sent_at))"""  # noqa: S608 - constants, no input
