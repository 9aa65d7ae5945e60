"""What a policy with other figures would have freed, for the idle report."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

from controller.decide.policies.replay import Replay, reach_s
from controller.domain.telemetry.history import Minutes, Track
from controller.store.core.database import Database
from controller.store.telemetry.idle_report import days, read_minutes, read_pasts
from controller.store.telemetry.minute_hours import MinutesRead
from schemas.manifest.policy import UtilizationPolicy


async def would_free(
    database: Database, since: datetime, until: datetime, policy: UtilizationPolicy
) -> dict[str, dict[str, float]]:
    """GPU seconds that the policy would have freed, by deployment uid and the GPUs' model.

    Reads some instances and a day at a time, each in a short transaction, and nothing more of what is decided.
    """
    freed: defaultdict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    after: str | None = ""
    while after is not None:
        async with database.snapshot() as connection:
            pasts, after = await read_pasts(connection, since, until, after)
        replays = {past.instance_id: Replay(past.claims, policy) for past in pasts}
        for begin, end in days(since, until):
            wanted = {
                (instance, track)
                for instance, replay in replays.items()
                for track in replay.tracks(begin.timestamp(), end.timestamp())
            }
            if wanted:
                async with database.snapshot() as connection:
                    minutes = await read_minutes(connection, wanted, begin - timedelta(seconds=reach_s(policy)), end)
                # Tens of thousands of minutes: too long for the event loop.
                await asyncio.to_thread(_look, replays, minutes, begin.timestamp(), end.timestamp())
        for past in pasts:
            for model, seconds in replays[past.instance_id].freed_gpu_s().items():
                freed[past.deployment_uid][model] += seconds
    return freed


def _look(
    replays: Mapping[str, Replay], minutes: Mapping[tuple[str, Track], MinutesRead], begin: float, end: float
) -> None:
    of_instances: defaultdict[str, dict[Track, Minutes]] = defaultdict(dict)
    for (instance, track), found in minutes.items():
        of_instances[instance][track] = found.columns().peaks()
    for instance, found_of in of_instances.items():
        replays[instance].look(found_of, begin, end)
