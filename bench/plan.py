"""The time of `plan`: many manifests on many workers, through the API over a real database, empty and full.

Usage: PYTHONPATH=tests python bench/plan.py [--workers 1000] [--manifests 100] [--rounds 5] [--candidates]
With `--candidates`: one manifest, and for each GPU whether it could be selected by hand.
Prints the median and the longest round, including the first, which reads the complete inventory.
"""

import argparse
import statistics
import time
from typing import Any, Final

from controller.daemon import tune_gc
from controller.store.core.database import Database
from rig.simulated_args import known_here
from support.leading.served_api import ServedApi, served
from temporary_database import run_with_database

AIM_S: Final = 1.0  # for 100 manifests on 1,000 workers
AIM_CANDIDATES_S: Final = 0.3  # for one manifest with the candidates of 8,000 GPUs
GPUS: Final = 8
GPU_MIB: Final = 81_920
_WORKERS: Final = """
    insert into workers (id, name, credential_hash, proxy_secret, phase, os, arch, driver, simulated, gpus_known,
                         session, reported_at)
    select gen_random_uuid(), 'w' || n, decode(md5(n::text), 'hex'), 's', 'ready', 'linux', 'x86_64', '580.95', true,
           true, 1, now()
      from generate_series(1, $1) n"""
_HOSTS: Final = """
    insert into devices (uuid, worker_id, kind, index, memory_mib, reported_mib, cpu_milli)
    select 'host-' || id, id, 'host', 0, 1048576, 1048576, 64000 from workers"""
_GPUS: Final = """
    insert into devices (uuid, worker_id, kind, index, model, compute_capability, memory_mib, reported_mib)
    select 'GPU-' || name || '-' || n, id, 'gpu', n, 'H100', '9.0', $1, $1
      from workers, generate_series(0, $2 - 1) n"""
_FULL: Final = """
    with d as (insert into deployments (uid, name, generation, revision, spec)
               values (gen_random_uuid(), 'full', 1, 1, '{"engine": "simulated", "priority": 100}') returning uid),
         r as (insert into revisions (deployment_uid, generation, spec, input_hash)
               select uid, 1, '{"engine": "simulated"}', '' from d),
         i as (insert into instances (id, deployment_uid, revision, phase, epoch)
               select 'full-' || g.uuid, d.uid, 1, 'running', 1 from d, devices g where g.kind = 'gpu' returning id)
    insert into claims (device, instance_id, epoch, memory_mib) select substr(id, 6), id, 1, $1 from i"""


async def fill(database: Database, workers: int) -> None:
    async with database.transaction() as connection:
        await connection.execute(_WORKERS, workers)
        await connection.execute(_HOSTS)
        await connection.execute(_GPUS, GPU_MIB, GPUS)


async def round_seconds(
    api: ServedApi, manifests: list[dict[str, Any]], rounds: int, *, candidates: bool
) -> tuple[list[float], int]:
    """The seconds of each round, and the number of instances that fit."""
    times, fits = [], 0
    for _ in range(rounds):
        began = time.monotonic()
        status, answer = await api.call("POST", "/api/v1/plan", json={"manifests": manifests, "candidates": candidates})
        times.append(time.monotonic() - began)
        if status != 200:
            raise SystemExit(f"POST /plan returned {status}: {answer}")
        if candidates:
            (gpus,) = answer["candidates"].values()
            print(f"{sum(gpus['selectable'])} of {len(gpus['uuid'])} GPUs are selectable, {times[-1]:.3f} s")
        fits = sum(item["fits"] for item in answer["items"])
    return times, fits


async def measure(database: Database, workers: int, count: int, rounds: int, *, candidates: bool) -> None:
    manifests = [
        {"kind": "Deployment", "name": f"m{n}", "engine": "simulated", "priority": n,
         "args": {"memory": f"{10 + 7 * n}GiB", "heads": 32}}
        for n in range(count)
    ]  # fmt: skip
    await fill(database, workers)
    async with served(database) as api:
        tune_gc()  # as the daemon does
        await print_state("empty", api, manifests, workers, rounds, candidates=candidates)
        async with database.transaction() as connection:
            await connection.execute(_FULL, GPU_MIB - 1024)
        await print_state("full", api, manifests, workers, rounds, candidates=candidates)


async def print_state(
    state: str, api: ServedApi, manifests: list[dict[str, Any]], workers: int, rounds: int, *, candidates: bool
) -> None:
    times, fits = await round_seconds(api, manifests, rounds, candidates=candidates)
    aim = AIM_CANDIDATES_S if candidates else AIM_S
    print(
        f"{state}: {len(manifests)} manifests on {workers} workers of {GPUS} GPUs: median "
        f"{statistics.median(times):.3f} s, longest {max(times):.3f} s (aim {aim:g} s); {fits} fit"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--manifests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", action="store_true")
    given = parser.parse_args()
    count = 1 if given.candidates else given.manifests
    with known_here():  # for the heads of the models
        run_with_database(
            lambda database: measure(database, given.workers, count, given.rounds, candidates=given.candidates)
        )


if __name__ == "__main__":
    main()
