"""Tells the service manager that started this process how far it is (systemd's `Type=notify`)."""

import contextlib
import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def tell(state: str) -> None:
    """Sends a state to the socket that `NOTIFY_SOCKET` names; does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
