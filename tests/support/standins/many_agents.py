"""Many real agents with simulated GPUs in one process: as many more as each line of stdin says.

Usage: python many_agents.py CONTROLLER_URL FOLDER. A line of stdin is a JSON list of join tokens, one for each further
agent; once all of them are connected, a line of stdout says in how many seconds. Ends with its stdin.
"""

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

import structlog
import uvloop
import yaml

from agent.daemon import run_agent
from agent.settings import AgentSettings

GPUS = 8
_GPU = {"model": "NVIDIA H100 80GB HBM3", "memory": "80GiB", "count": GPUS}


def settings(number: int, url: str, folder: Path, token: str) -> AgentSettings:
    """Settings of one of them."""
    name = f"host-{number}"
    hosts = folder / f"{name}.yaml"
    hosts.write_text(yaml.safe_dump({"workers": [{"name": name, "gpus": [_GPU]}]}))
    return AgentSettings(
        controller_url=url,
        join_token=token,
        name=name,
        simulate=hosts,
        data_dir=folder / name,
        proxy_host="127.0.0.1",
    )


async def play(url: str, folder: Path) -> None:
    """Starts agents as told, until there is nobody left to tell."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    stop = asyncio.Event()
    count = 0
    async with asyncio.TaskGroup() as agents:
        while line := await reader.readline():
            began = time.monotonic()
            started = []
            for token in json.loads(line):
                ready = asyncio.Event()
                given = settings(count, url, folder, token)
                agents.create_task(run_agent(given, stop=stop, on_ready=ready.set), name=f"agent-{count}")
                started.append(ready)
                count += 1
            for ready in started:
                await ready.wait()
            sys.stdout.write(f"{time.monotonic() - began}\n")
            sys.stdout.flush()
        os._exit(0)  # at once: a thousand clean ends are none of the bench's business


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(sys.argv[1], Path(sys.argv[2])))
