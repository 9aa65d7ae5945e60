"""Clients and an operator that record what they ask and see, for a checker that trusts no one else."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from support.processes.controllers import Controllers

LIMIT_S = 90.0  # of a request: longer than any process is stopped
PAUSE_S = 0.2  # after an error, as clients have it
CHAT = "/v1/chat/completions"
OPERATION_S = 5.0  # one try of the operator; another one follows
OPERATED_S = 240.0
_TRIES_S = 0.25


class Record:
    """A file of records."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def note(self, what: str, **more: Any) -> None:
        """Adds a record; `t` is now unless it is given."""
        self._file.write(json.dumps({"t": time.monotonic(), "what": what} | more) + "\n")

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def door_at(controller: str) -> str:
    """The name of that controller's gateway in records."""
    return f"door-{controller}"


class Client:
    """Asks models by either gateway, one request after another.

    Args:
        name: no other client has it.
        doors: addresses of the gateways by controller.
        key: an inference key's header.
        models: by name.
        seed: of its choices.
    """

    def __init__(
        self, name: str, doors: dict[str, str], key: str, models: list[str], seed: str, record: Record
    ) -> None:
        self._name, self._doors, self._models, self._record = name, doors, models, record
        self._headers = {"Authorization": f"Bearer {key}"}
        self._chance = random.Random(seed)  # noqa: S311 - load, not secrets
        self._count = 0
        self.whole = 0

    async def run(self, until_s: float) -> None:
        """Asks until then, by the monotonic clock. Each request has an end by then, or a little later."""
        # A kept connection that its server closes just then loses a request by HTTP's own design.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            while time.monotonic() < until_s:
                if not await self._one(session):
                    await asyncio.sleep(PAUSE_S)

    async def _one(self, session: aiohttp.ClientSession) -> bool:
        chance = self._chance
        self._count += 1
        name, model, controller = f"{self._name}-{self._count}", chance.choice(self._models), chance.choice("ab")
        wanted: dict[str, Any] = {"id": name, "tokens": chance.randint(1, 20), "pause_s": chance.choice((0, 0.01, 0.1))}
        if chance.random() < 0.05:
            wanted["busy"] = True
        body = {"model": model, "messages": [{"role": "user", "content": json.dumps(wanted)}]}
        body["stream"] = chance.random() < 0.6
        leaves = body["stream"] and chance.random() < 0.1
        self._record.note("asked", id=name, model=model, door=door_at(controller))
        status, end, answer = 0, "lost", ""
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                session.post(self._doors[controller] + CHAT, json=body, headers=self._headers) as response,
            ):
                status, end = response.status, "cut"
                end, answer = await self._read(response, stream=bool(body["stream"]), leaves=leaves)
        except TimeoutError:
            end, answer = "lost", f"not within {LIMIT_S:g} s"
        except aiohttp.ClientPayloadError as error:
            answer = repr(error)
        except aiohttp.ClientError as error:
            end, answer = "lost", repr(error)
        self._record.note("ended", id=name, status=status, end=end, answer=answer)
        self.whole += end == "whole"
        return end == "whole"

    async def _read(self, response: aiohttp.ClientResponse, *, stream: bool, leaves: bool) -> tuple[str, str]:
        if response.status != 200:
            return "error", (await response.text())[:300]
        if not stream:
            return "whole", (await response.json())["choices"][0]["message"]["content"]
        text, done = "", False
        async for line in response.content:
            data = line.decode().removeprefix("data: ").strip()
            if data == "[DONE]":
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(data)
                if "error" in event:
                    return "cut", data[:300]
                text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
                if leaves:
                    return "left", text
        return ("whole" if done else "cut"), text


class Operator:
    """Stops and starts a model, and gives another one new processes, by whichever controller answers."""

    def __init__(self, cluster: Controllers, doors: dict[str, str], record: Record) -> None:
        self._cluster, self._doors, self._record = cluster, doors, record
        self.rounds = 0

    async def run(self, until_s: float, switched: str, changed: str, spec: dict[str, Any], pause_s: float) -> None:
        """Until then, by the monotonic clock; the model runs at the end."""
        while time.monotonic() < until_s:
            await asyncio.sleep(pause_s)
            await self._done("POST", f"/deployments/{switched}/stop")
            await self.until(lambda: self._nothing_left(switched))
            self._record.note("stopped", model=switched)
            self.rounds += 1
            spec = spec | {"env": {"ROUND": str(self.rounds)}}
            await self._done("PUT", f"/deployments/{changed}", spec)
            await asyncio.sleep(pause_s)
            self._record.note("started", model=switched)
            await self._done("POST", f"/deployments/{switched}/start")

    async def _nothing_left(self, model: str) -> bool:
        items = (await self.call("GET", "/instances?limit=1000") or {}).get("items")
        return items is not None and not any(one["spec"]["deployment"] == model for one in items)

    async def _done(self, method: str, path: str, body: Any = None) -> None:
        async def done() -> bool:
            return await self.call(method, path, body) is not None

        await self.until(done)

    async def until(self, seen: Callable[[], Awaitable[bool]]) -> None:
        """Waits for it."""
        async with asyncio.timeout(OPERATED_S):
            while not await seen():  # noqa: ASYNC110 - what others do has no event here
                await asyncio.sleep(_TRIES_S)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the first controller that has one; None: none has."""
        timeout = aiohttp.ClientTimeout(total=OPERATION_S)
        for url in self._doors.values():
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
                async with (
                    aiohttp.ClientSession(headers=self._cluster.headers(), timeout=timeout) as session,
                    session.request(method, f"{url}/api/v1{path}", json=body) as answer,
                ):
                    if answer.status < 300:
                        return await answer.json(content_type=None)
        return None
