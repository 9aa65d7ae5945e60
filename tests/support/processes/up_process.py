"""A real `gpuward up` in another process, and what it shows outside."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import psutil

import cli

_SOURCE = str(Path(cli.__file__).parents[1])


def clean_env() -> dict[str, str]:
    """The environment without Gpuward's settings; Python finds our packages by it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUWARD_")}
    return {**kept, "PYTHONPATH": _SOURCE}


class Up:
    """Starts at once. `user` is a uid to run under, by default that of the tests."""

    def __init__(self, data_dir: Path, *words: str, user: int | None = None) -> None:
        self.data_dir = data_dir
        self._lines: list[str] = []
        self._more = threading.Condition()
        account = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli", "up", "--data-dir", str(data_dir), *words],
            env={**clean_env(), "HOME": str(data_dir)},
            cwd=data_dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **account,  # type: ignore[call-overload]  # the three are Popen's own, by their names
        )
        self._reader = threading.Thread(target=self._read, name="output of up")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for engine in self.engines():
            engine.kill()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def text(self) -> str:
        with self._more:
            return "".join(self._lines)

    def wait_until_ready(self, limit_s: float = 60) -> None:
        """Returns when everything runs; else fails with the output."""
        with self._more:
            came = self._more.wait_for(lambda: "Ctrl-C stops" in "".join(self._lines) or not self._reading(), limit_s)
        assert came, self.text
        assert "Ctrl-C stops" in self.text, self.text

    def wait(self, limit_s: float = 60) -> int:
        """The exit code, once it ends by itself."""
        code = self.process.wait(limit_s)
        self._reader.join(10)
        return code

    def stop(self, number: int = signal.SIGINT, limit_s: float = 30) -> tuple[int, float]:
        """Sends a signal; returns the exit code and the seconds until the end."""
        begun = time.monotonic()
        self.process.send_signal(number)
        return self.wait(limit_s), time.monotonic() - begun

    def commands(self) -> list[str]:
        """The commands that it printed."""
        printed = self.text.partition("Try in another terminal")[2].splitlines()
        return [line.strip() for line in printed if line.startswith("  ")]

    def url(self) -> str:
        lines = (self.data_dir / "client.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)["GPUWARD_URL"]

    def engines(self) -> list[psutil.Process]:
        """The processes of engines in this data folder, whatever their parent is."""
        found = []
        for process in psutil.process_iter():
            try:
                folder = process.environ().get("GPUWARD_AGENT_DIR", "")
            except psutil.Error:
                continue
            if folder.startswith(f"{self.data_dir}/"):
                found.append(process)
        return found

    def leftovers(self) -> list[str]:
        """Command lines of processes in this data folder: engines, database, agents."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if str(self.data_dir) in line and process.pid != os.getpid():
                found.append(line)
        return found + [str(engine) for engine in self.engines()]

    def _reading(self) -> bool:
        return self._reader.is_alive() and self.process.poll() is None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._more.notify_all()
