"""Clients that ask a model all the time, while a test breaks something."""

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

LIMIT_S = 30


@dataclass
class Load:
    """Clients that ask one after another, and how each request ended."""

    url: str
    headers: dict[str, str]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[tuple[float, float, object]] = field(default_factory=list)  # begun, ended, status or error

    async def client(self) -> None:
        async with aiohttp.ClientSession(headers=self.headers, timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session:
            while not self.over.is_set():
                began = time.monotonic()
                end = await self._ask(session)
                self.ends.append((began, time.monotonic(), end))

    async def _ask(self, session: aiohttp.ClientSession) -> object:
        body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            return repr(error)
