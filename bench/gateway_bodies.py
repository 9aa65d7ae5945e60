"""Bodies of 64 MiB, of one key and of eight at once: the lag of the gateway's loop, and the memory.

    make bench-bodies

Each line is a process of its own: it reads bodies as the gateway does, and for comparison in the loop. Aims: the loop
is late by no more than 50 ms, and reading takes no more memory than twice the bodies. A body that is not JSON takes no
more than half a second of CPU.
"""

import argparse
import asyncio
import gc
import resource
import subprocess
import sys
import time
from typing import Final

import uvloop

from gateway.bodies.json_body import read_json
from gateway.bodies.long_bodies import LongBodies
from gateway.bodies.parameters import BadRequestError, Parameters

SIZE: Final = 64 * 2**20
TICK_S: Final = 0.01
GC_THRESHOLDS: Final = (20_000, 20, 20)
LATE_S: Final = 0.05
REFUSE_S: Final = 0.5
LIMIT_S: Final = 600.0
BODIES: Final = {
    "zeros": (b'{"model": "m", "x": [0', b",0", b"]}"),
    "objects": (b'{"model": "m", "x": [{}', b",{}", b"]}"),
    "nested": (b'{"model": "m", "x": [0', b',{"a":{"a":{"a":[[[]]]}}}', b"]}"),
    "strings": (b'{"model": "m", "x": [0', b',"\\n"', b"]}"),
    "one string": (b'{"model": "m", "x": "', b"a", b'"}'),
    "one string of escapes": (b'{"model": "m", "x": "', b"\\ud83d\\ude00", b'"}'),
    "late key": (b'{"x": [0', b",0", b'], "model": "m"}'),
    "shallow arrays": (b'{"model": "m", "x": [0', b"," + b"[" * 60 + b"]" * 60, b"]}"),
    "long options": (b'{"model": "m", "stream_options": {"x": [0', b",{}", b"]}}"),
}
NOT_JSON: Final = {  # or nested too deeply
    "deep arrays": (b'{"model": "m", "x": [0', b"," + b"[" * 1000 + b"]" * 1000, b"]}"),
    "deep objects": (b'{"model": "m", "x": [0', b"," + b'{"":' * 1000 + b"0" + b"}" * 1000, b"]}"),
    "strings, no commas": (b'{"model": "m", "x": ', b'""', b"}"),
    "commas in strings": (b'{"model": "m", "x": ', b'","', b"}"),
    "arrays, no commas": (b'{"model": "m", "x": ', b"[]", b"}"),
    "one number": (b'{"model": "m", "x": 0.', b"1", b"}"),
    "digits, blanks": (b'{"model": "m", "x": ', b" " * 65535 + b"1", b"}"),
}


def body_of(name: str) -> bytes:
    begin, middle, end = (BODIES | NOT_JSON)[name]
    return begin + middle * ((SIZE - len(begin) - len(end)) // len(middle)) + end


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(name: str, count: int, *, at_once: bool) -> None:
    body, bodies = body_of(name), LongBodies()
    worst, loop = 0.0, asyncio.get_running_loop()

    async def tick() -> None:
        nonlocal worst
        due = loop.time()
        while True:
            due = max(due, loop.time()) + TICK_S
            await asyncio.sleep(due - loop.time())
            worst = max(worst, loop.time() - due)

    async def read(key: int) -> Parameters | None:
        await asyncio.sleep(0)
        try:
            return read_json(body) if at_once else (await bodies.read(f"key-{key}", body)).parameters
        except BadRequestError:
            return None

    gc.collect()
    gc.freeze()  # as the gateway does
    gc.set_threshold(*GC_THRESHOLDS)
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(5 * TICK_S)
    before, began, cpu = rss_mib(), time.perf_counter(), time.process_time()
    async with asyncio.timeout(LIMIT_S):
        results = await asyncio.gather(*(read(key) for key in range(count)))
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu
    await asyncio.sleep(2 * TICK_S)
    ticking.cancel()
    more = rss_mib() - before
    if name in NOT_JSON:
        as_due = results == [None] * count and cpu <= REFUSE_S * count
    else:
        as_due = all(result is not None and result.model == "m" for result in results)
    good = at_once or (as_due and worst <= LATE_S and more <= 2 * SIZE / 2**20 * count)
    verdict = "    " if at_once else "pass" if good else "FAIL"
    way = "in the loop" if at_once else "as served"
    figures = f"late by {worst * 1e3:7.1f} ms, {more:6.0f} MiB more, {spent:5.1f} s, CPU {cpu:5.1f} s"
    print(f"{verdict}  {count} x {name:22}{way:12}{figures}", flush=True)
    if not good:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs=3, metavar=("NAME", "COUNT", "WAY"), help="one case, in this process")
    options = parser.parse_args()
    if options.case:
        name, count, way = options.case
        uvloop.run(measure(name, int(count), at_once=way == "once"))
        return
    failed = False
    for name in BODIES | NOT_JSON:
        for count in (1, 8):
            for way in ("once", "served"):
                case = [sys.executable, sys.argv[0], "--case", name, str(count), way]
                failed |= subprocess.run(case, check=False, timeout=LIMIT_S).returncode != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
