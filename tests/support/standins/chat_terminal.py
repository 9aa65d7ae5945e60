"""A terminal without pictures on which a chat of the command line runs."""

import os
import pty
import select
import subprocess
import sys
import time
from typing import Self

# Of a background job the shell has interrupts ignored, and its children inherit that.
HEARS_INTERRUPTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from cli.main import main
main()
"""


class ChatTerminal:
    """A call on a terminal; what it writes is read as text. It is killed at the end of the context."""

    def __init__(self, *words: str) -> None:
        self.main, inner = pty.openpty()
        env = {**os.environ, "TERM": "dumb", "INPUTRC": os.devnull}
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEARS_INTERRUPTS, *words],
            stdin=inner, stdout=inner, stderr=inner, env=env, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        self.seen = ""

    def until(self, text: str, limit_s: float = 30.0) -> None:
        end = time.monotonic() + limit_s
        while text not in self.seen:
            ready, _, _ = select.select([self.main], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.seen!r}"
            self.seen += os.read(self.main, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.main)
