"""Logs with times, of real processes that write their files themselves, also while no agent runs."""

import asyncio
import json
import re
import time
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from schemas.wire import TIMED_LOG
from support.processes.agents import running_agent
from support.standins.controller import SECRET, ControllerDouble, start_order

AUTH = {"Authorization": f"Bearer {SECRET}"}
FRAME = re.compile(rb"L(\d+) ([01]) (\d+) (.*)")
# Writes the time into each line, ten a second, in step with the clock.
WRITER = """
import time, sys
n = 0
while True:
    print(n, time.time(), flush=True)
    n += 1
    time.sleep(0.1)
"""


async def read(base: str, **asked: str) -> list[bytes]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        session.get(f"{base}/logs/i-1", params={"times": "1", **asked}, headers=AUTH) as answer,
    ):
        assert (answer.status, answer.content_type) == (200, TIMED_LOG)
        return (await answer.read()).splitlines()


def base_of(controller: ControllerDouble) -> str:
    return f"http://127.0.0.1:{controller.hellos[-1].proxy_port}"


async def test_lines_keep_their_seconds_over_agents(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", start_order("{python}", "-c", WRITER))
        await controller.state("i-1", "running")
        await asyncio.sleep(3.0)
        await agent.crash()
    away_from = time.time()
    await asyncio.sleep(5.0)
    async with running_agent(controller, tmp_path):
        await controller.state("i-1", "running")
        away_to = time.time()
        await asyncio.sleep(3.0)
        *frames, caught_up = await read(base_of(controller), tail="100000")
        assert caught_up == b"C"
        found = [FRAME.fullmatch(frame) for frame in frames]
        lines = [(int(m[1]) / 1000, m[2] == b"1", int(m[3]), *m[4].split()) for m in found if m]
        assert [int(number) for *_, number, _ in lines] == list(range(len(frames))), "all lines, in order"
        assert [one[2] for one in lines] == sorted({one[2] for one in lines})
        seen = {"while an agent ran": 0, "while none did": 0}
        for at_s, exact, _, _, written in lines:
            written_s = float(written)
            if away_from - 2 < written_s < away_to + 1:
                assert -0.1 <= at_s - written_s <= away_to - away_from + 4, "no later than that"
                seen["while none did"] += not exact
            else:
                assert exact, (at_s, written_s, away_from, away_to)
                assert -0.1 <= at_s - written_s <= 1.5, "to the second"
                seen["while an agent ran"] += 1
        assert min(seen.values()) >= 15, seen
        since_s = time.time() - 2.0
        *recent, _ = await read(base_of(controller), since_ms=str(int(since_s * 1000)))
        written = [float(frame.split()[-1]) for frame in recent]
        assert len([at for at in written if at >= since_s]) >= 15
        assert written[0] >= since_s - 1.5


async def test_a_followed_log_ends_with_how_the_process_ended(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        script = "echo one; while [ ! -e go ]; do sleep 0.05; done; printf 'last words'; exit 3"
        await controller.start_order("i-1", start_order("sh", "-c", script))
        await controller.state("i-1", "running")
        following = asyncio.create_task(read(base_of(controller), follow="1", epoch="1"))
        await asyncio.sleep(1.0)
        await controller.start_order("i-2", start_order("touch", "../../i-1/work/go"))
        first, caught_up, last, end = await asyncio.wait_for(following, 20)
        assert (first.split(b" ", 3)[3], caught_up, last.split(b" ", 3)[3]) == (b"one", b"C", b"last words")
        told = json.loads(end.removeprefix(b"E"))
        assert (told["reason"], told["exit_code"]) == ("exit", 3)
        assert abs(told["at_ms"] / 1000 - time.time()) < 5
        again = await read(base_of(controller))
        assert json.loads(again[-1].removeprefix(b"E")) | {"at_ms": None} == told | {"at_ms": None}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{base_of(controller)}/logs/i-1", params={"times": "1", "epoch": "2"}, headers=AUTH) as answer,
        ):
            assert answer.status == 404


async def test_no_log_shows_a_secret_after_a_restart_either(controller: ControllerDouble, tmp_path: Path) -> None:
    script = "printf 'token hf_very-'; sleep 0.4; echo secret-value; echo plain $P; exec sleep 1000"
    order = start_order("sh", "-c", script)
    env = {"T": "hf_very-secret-value", "P": "shown"}
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", replace(order, env=env, secret_env=("T",)))
        await controller.state("i-1", "running")
        base = base_of(controller)
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession() as session,
            session.get(f"{base}/logs/i-1", params={"follow": "1"}, headers=AUTH) as answer,
        ):
            text = b""
            while b"plain" not in text:
                text += await answer.content.readany()
        assert text == b"token [redacted]\nplain shown\n"
        await agent.crash()
    async with running_agent(controller, tmp_path):
        frames = await read(base_of(controller))
        assert [frame.split(b" ", 3)[3] for frame in frames[:-1]] == [b"token [redacted]", b"plain shown"]
