"""Which instances lacked a secret for their start, and may have it by now."""

from typing import Final

from controller.domain.access.secret_scopes import SECRET_REFUSALS

_CODES: Final = ", ".join(f"'{code}'" for code in SECRET_REFUSALS)
# Of an instance `i` whose start was refused. A secret that was set while it was refused counts as set since. The first
# condition spares most instances the look at their commands.
MENDED: Final = f"""
    ((i.reason in ({_CODES}) or i.phase in ('scheduled', 'starting')) and exists (
         select 1 from commands o
          cross join lateral jsonb_each_text(case jsonb_typeof(o.payload -> 'env_secrets') when 'object'
                                                  then o.payload -> 'env_secrets' else '{{}}' end) v
           join secrets s on s.name = v.value
          where o.instance_id = i.id and o.epoch = i.epoch and o.verb = 'start' and o.state = 'refused'
            and o.code in ({_CODES}) and s.changed_at > o.sent_at))"""  # noqa: S608 - constants, no input
