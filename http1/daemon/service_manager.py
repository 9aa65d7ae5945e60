"""Reports this process's state to the service manager that started it (systemd's `Type=notify` and `WatchdogSec=`)."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Self

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_LEAST_INTERVAL_S: Final = 0.1
_SEND_LIMIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The service manager of this process, or none.

    Attributes:
        address: its socket, as `NOTIFY_SOCKET` names it; empty without one.
        watchdog_s: it restarts this process after this long without a sign of life; None without a watchdog.
    """

    address: str = ""
    watchdog_s: float | None = None

    @classmethod
    def claim(cls) -> Self:
        """Reads the environment, and removes what it read: children of this process must not speak for it."""
        address, interval, pid = (os.environ.pop(name, "") for name in (_SOCKET, _WATCHDOG, _WATCHDOG_PID))
        if not address.startswith(("/", "@")):
            return cls()
        watched = interval.isdecimal() and int(interval) > 0 and pid in {"", str(os.getpid())}
        return cls(address, int(interval) / 1e6 if watched else None)

    def notify(self, *states: str) -> None:
        """Sends states, such as `READY`. Does nothing without a service manager, or where its socket is gone."""
        if not self.address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            # The next sign of life replaces a lost one, but nothing replaces the other states.
            manager.settimeout(0 if states == (ALIVE,) else _SEND_LIMIT_S)
            address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
            manager.sendto("\n".join(states).encode(), address)

    async def keep_alive(self) -> None:
        """Shows the watchdog, until cancelled, that the event loop comes round."""
        if self.watchdog_s is None:
            return
        while True:
            self.notify(ALIVE)
            await asyncio.sleep(max(_LEAST_INTERVAL_S, self.watchdog_s / 3))


async def until_signalled(manager: ServiceManager, run: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Runs a daemon with an event that SIGTERM and SIGINT set, and keeps its watchdog quiet until then.

    Args:
        manager: gets a report of the stop.
        run: the daemon, until the event is set; returns the exit code.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        manager.notify(STOPPING)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    watchdog = asyncio.create_task(manager.keep_alive(), name="watchdog")
    try:
        return await run(stop)
    finally:
        watchdog.cancel()
