"""Answers of controllers are read in bounds."""

import asyncio

import aiohttp


async def read_at_most(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body, cut after that many bytes.

    Raises:
        aiohttp.ClientError: it broke off.
        TimeoutError: the request's deadline has passed.
    """
    try:
        return await response.content.readexactly(most_bytes)
    except asyncio.IncompleteReadError as ended:
        return ended.partial
