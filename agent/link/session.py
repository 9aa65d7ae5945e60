"""One welcomed connection: what comes in is `incoming`; reports, samples and heartbeats go out."""

import asyncio
from collections.abc import Callable
from typing import Final

from agent.link.channel import Channel
from agent.link.context import LinkContext
from agent.link.incoming import receive_all
from agent.tasks import wait_first
from schemas.process_figures import read_figures
from schemas.wire import Heartbeat, InventoryChanged, Samples, Welcome

_PING_S: Final = 3.0
_PING_TICK_S: Final = 0.25


class Session:
    """Serves the connection. `on_ack` is called at each acknowledgement of reports."""

    def __init__(self, context: LinkContext, channel: Channel, welcome: Welcome, on_ack: Callable[[], None]) -> None:
        self._context = context
        self._channel = channel
        self._heartbeat_s = welcome.heartbeat_s
        self._on_ack = on_ack
        context.sampler.period_s = welcome.sample_s
        context.backlog.rewind()
        context.inventory.dismiss(welcome.dismissed)

    async def run(self) -> None:
        """Serves until the connection is lost.

        Raises:
            UnreachableError: the connection is lost.
            SendQueueFullError: the controller does not read.
            RefusedError: the controller refuses this agent for good.
        """
        await wait_first(
            receive_all(self._context, self._channel, self._on_ack),
            self._send(),
            self._send_samples(),
            self._send_heartbeats(),
            self._ping(),
        )

    async def _send(self) -> None:
        while True:
            await self._channel.send(await self._context.send_queue.next())

    async def _send_samples(self) -> None:
        while True:
            periods = await self._context.backlog.next()
            await self._channel.send(Samples(sent_s=self._context.clock(), periods=periods))

    async def _send_heartbeats(self) -> None:
        context, seq = self._context, 0
        while True:
            await asyncio.sleep(self._heartbeat_s)
            inventory = await context.inventory.read()
            if context.inventory.mark_reported(inventory):
                context.send_queue.add(InventoryChanged(inventory=inventory))
            seq += 1
            beat = Heartbeat(
                seq=seq,
                sent_s=context.clock(),
                gpus=inventory.gpus,
                gpus_error=inventory.gpus_error,
                process=read_figures(context.collections, context.settings.data_dir),
            )
            context.send_queue.add(beat)

    async def _ping(self) -> None:
        """Pings often enough for the process with the shortest fence."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(_PING_TICK_S)
            waited_s += _PING_TICK_S
            if waited_s >= min(_PING_S, self._context.supervisor.shortest_fence_s / 4):
                await self._channel.ping()
                waited_s = 0.0
