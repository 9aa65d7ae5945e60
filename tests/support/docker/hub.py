"""A real registry on loopback, which a Docker engine takes for Docker Hub. Debian's package has the program."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from support.docker.compose import KEPT

READY_S = 20.0
_CONFIG = """\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"}}
"""


class Hub:
    """It serves what is pushed to `NAME`, such as `ADDRESS/library/python:3.11`."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers.

        Raises:
            AssertionError: it ends, or does not answer in time.
        """
        self._folder.mkdir()
        config = self._folder / "config.yml"
        config.write_text(_CONFIG.format(folder=self._folder / "images", address=self.address))
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [KEPT / "docker-registry", "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            ended = self._process.poll() is not None or time.monotonic() > deadline
            assert not ended, (self._folder / "log").read_text()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v2/", timeout=5) as answer:  # noqa: S310 - its own address
                return answer.status == 200
        except (urllib.error.URLError, TimeoutError):
            return False

    def stop(self) -> None:
        """Ends it."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(READY_S)
